"""Reports of a process about itself: logs, metrics, resources, energy."""
