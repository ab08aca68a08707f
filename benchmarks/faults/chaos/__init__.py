"""Faults in a live run: killed processes, cut links, a full disk. No acknowledged data may be lost."""
