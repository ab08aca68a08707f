"""Writes what is made from code, results and manifests: parts of the documentation, and the Helm chart."""
