"""Algorithms for stored data."""
