"""`actorq profile`: what the parts of a run cost on this machine, and what follows for its size."""
