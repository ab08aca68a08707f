"""Experiment trackers that get a run's scalars in addition to TensorBoard, each in its own process."""
