"""Benchmarks of many actors and watchers, and of long runs."""
