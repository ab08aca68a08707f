"""Policies in an actor: receives, loads, checks and selects them."""
