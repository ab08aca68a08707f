"""Algorithms with a replay whose policies have memory: they train on sequences."""
