"""Training from Python: `actorq.train` starts a run next to the calling program and returns a handle for it."""
