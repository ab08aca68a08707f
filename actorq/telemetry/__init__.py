"""Reports of processes about themselves: logs, metrics, resources, energy."""
