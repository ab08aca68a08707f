"""What the learner reports of a run: status, metrics, TensorBoard events."""
