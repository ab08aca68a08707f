"""Sequences of steps from the replay, for policies with memory."""
