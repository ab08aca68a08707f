"""Emits quantized policies from a checkpoint, and checks them with the fidelity gate."""
