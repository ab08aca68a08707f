"""Tasks that need memory: returns of policies with memory and without it."""
