"""What schemes share: the choice of layers, integers for weights and activations, and prepared models."""
