"""Experiment trackers that get a run's scalars beside TensorBoard, each in a process of its own."""
