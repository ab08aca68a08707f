"""The life of a run: its identity, its environment, its evaluations and its end."""
