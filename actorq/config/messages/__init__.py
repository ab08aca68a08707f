"""Texts about settings in commands: expected values, suggestions for misspelled names, and the help."""
