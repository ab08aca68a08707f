"""Benchmarks of training: final returns, and the time to reach them."""
