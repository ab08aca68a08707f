"""Environments whose observations are pictures of a simulator."""
