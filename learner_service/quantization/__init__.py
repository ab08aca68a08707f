"""Training of a policy as its actors run it, with rounded weights and activations."""
