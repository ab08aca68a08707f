"""The training loop: updates, publication of policies, checkpoints."""
