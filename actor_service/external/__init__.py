"""Simulators that connect to an actor and play with its policy."""
