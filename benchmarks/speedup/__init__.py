"""Benchmarks of speed: actors, whole runs, and what limits them."""
