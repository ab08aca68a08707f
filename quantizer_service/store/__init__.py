"""Versions on disk."""
