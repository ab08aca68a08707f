"""Benchmarks of returns: what training reaches, and how soon."""
