"""Algorithms for observations with images: random shifts, and an encoder that policy and critics share."""
