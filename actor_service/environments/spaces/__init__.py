"""Gymnasium's spaces: what a policy sees of them, and how its actions reach them."""
