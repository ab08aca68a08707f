"""Benchmark of policies with memory: drift of the quantized state, and time of a call."""
