"""Benchmarks of the learner's updates."""
