"""Policies in an actor: receives, loads, checks and chooses them."""
