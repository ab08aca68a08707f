"""The acting loop: steps environments with the newest policy."""
