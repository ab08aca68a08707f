"""Stored data: recorded transitions in the form of a replay, for training with or without actors."""
