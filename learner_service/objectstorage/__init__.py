"""Copies of a run's checkpoints in object storage, so that the run survives the loss of its volume."""
