"""Gymnasium's spaces: converts observations for a policy, and a policy's actions for the environment."""
