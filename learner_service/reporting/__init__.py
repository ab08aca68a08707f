"""The learner's reports of a run: status, Prometheus metrics, TensorBoard events."""
