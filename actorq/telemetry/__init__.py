"""What processes say about themselves: logs, resources, energy."""
