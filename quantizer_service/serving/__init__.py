"""Serves policies to watchers, as the quantizer or as a relay of it."""
