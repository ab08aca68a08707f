"""Mutual TLS: certificates, roles, and who may call what."""
