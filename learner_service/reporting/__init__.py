"""The learner's reports of a run: status, Prometheus metrics, scalars for TensorBoard and other trackers."""
