"""Fast forms of what networks compute, each with the plain form beside it."""
