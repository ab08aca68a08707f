"""Quantizes policies that ten libraries build and export."""
