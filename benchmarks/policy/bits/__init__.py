"""The fewest bits with which trained policies still act well: after training, and by quantization-aware training."""
