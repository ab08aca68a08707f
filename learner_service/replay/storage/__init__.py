"""The replay on disk: a ring of transitions in memory-mapped files that survives the death of its process."""
