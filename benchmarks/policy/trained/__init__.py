"""Trained policies for the benchmark of fidelity."""
