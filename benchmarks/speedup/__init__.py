"""Benchmarks of speed: actors, whole runs, and their bottlenecks."""
