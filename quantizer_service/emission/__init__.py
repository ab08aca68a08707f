"""From a checkpoint to quantized policies that passed the fidelity gate."""
