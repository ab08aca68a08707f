"""Benchmarks of single policies: time of a call, bytes of an update, time of a swap."""
