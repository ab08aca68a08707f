"""Quantization-aware training: updates compute with the rounded weights and activations of the actors."""
