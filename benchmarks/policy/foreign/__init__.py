"""Policies of other libraries: checks the agreement that `actorq quantize` prints."""
