"""Benchmarks that harm a run: killed processes, hostile peers, damaged files, power cuts."""
