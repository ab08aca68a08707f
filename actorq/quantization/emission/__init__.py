"""Parts that schemes share: choice of layers, rounding of weights and activations, prepared models."""
