"""The operator's reports about a run: the status of its TrainingRun, and events."""
