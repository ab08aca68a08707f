"""The configuration of a run: settings, their sources, and presets."""
