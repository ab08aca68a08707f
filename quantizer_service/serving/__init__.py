"""Policies for watchers: the quantizer at work, and relays of it."""
