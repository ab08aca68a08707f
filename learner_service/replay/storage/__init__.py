"""The replay on disk: a ring of transitions in memory-mapped files that survives a kill of its process."""
