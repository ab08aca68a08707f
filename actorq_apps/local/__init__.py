"""A whole run on one machine: starts, watches, restarts and stops the services as processes."""
