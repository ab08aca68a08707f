"""The kind TrainingRun: the models that read its objects."""
