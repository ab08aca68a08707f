"""A policy server: the time of one action, and many clients at once."""
