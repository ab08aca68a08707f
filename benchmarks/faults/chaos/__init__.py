"""Faults on a live run: processes are killed, links are cut, the disk is full; nothing acknowledged may be lost."""
