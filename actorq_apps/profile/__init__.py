"""Measures the costs of a run's parts on this machine, and recommends the size of a run (`actorq profile`)."""
