"""Policies of other libraries: is the agreement that `actorq quantize` prints the true one?"""
