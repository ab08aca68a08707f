"""The acting loop: environments stepped with the newest policy."""
