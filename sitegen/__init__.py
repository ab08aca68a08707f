"""Generates parts of the documentation and the Helm chart from code, results and manifests."""
