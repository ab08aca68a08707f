"""The store: the versions of a run on disk."""
