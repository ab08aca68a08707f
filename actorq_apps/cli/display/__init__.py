"""Output of commands on a terminal."""
