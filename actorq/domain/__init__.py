"""Values that services exchange: policies, trajectories, the status of a run."""
