"""Environments of packages that this project does not know."""
