"""`actorq sweep`: searches for settings with many runs."""
