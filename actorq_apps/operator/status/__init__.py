"""What the operator says of a run: the status of its TrainingRun, and events."""
