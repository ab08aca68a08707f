"""The operator for TrainingRun objects on Kubernetes: reads them, and creates the objects of their runs."""
