"""Benchmarks of single policies: their calls, their bytes, their way to an actor."""
