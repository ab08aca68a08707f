"""Benchmarks of faults: killed processes, hostile peers, damaged files, power cuts."""
