"""Training from Python: `actorq.train` starts a run beside the calling program and returns a handle on it."""
