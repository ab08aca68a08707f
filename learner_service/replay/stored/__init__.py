"""Stored data as a source of batches: files that are only read, beside the own replay or in place of it."""
