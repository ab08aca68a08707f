"""Parts that schemes share: choice of layers, integers for weights and activations, prepared models."""
