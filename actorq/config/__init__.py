"""The configuration of a run: its tree, where its settings come from, presets."""
