"""Benchmarks beside other reinforcement-learning libraries."""
