"""TrainingRun objects on Kubernetes: what they say, and the objects of the runs that they describe."""
