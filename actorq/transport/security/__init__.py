"""Mutual TLS: certificates, roles, and permissions for calls."""
