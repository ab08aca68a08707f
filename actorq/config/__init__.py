"""The configuration of a run: its settings, their sources, presets."""
