"""Trained policies for the fidelity benchmark."""
