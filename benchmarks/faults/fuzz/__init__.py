"""Sends malformed messages to all services."""
