"""Benchmarks against other reinforcement-learning libraries."""
