"""The models of the kind TrainingRun, which parse and check its objects."""
