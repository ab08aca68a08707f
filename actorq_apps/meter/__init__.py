"""The energy meter of a machine, a process of its own. Nothing here imports codecarbon until a meter is created."""
