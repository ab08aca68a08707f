"""A whole run on one machine: the real services as processes that are started, watched, restarted and stopped."""
