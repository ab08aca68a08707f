"""The energy meter of a machine, in its own process. Imports codecarbon only when a meter is created."""
