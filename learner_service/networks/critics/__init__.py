"""Twin critics with further layers: layer normalization, and a value of states."""
