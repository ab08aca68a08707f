"""The commands `actorq quantize` and `actorq export`."""
