"""Writes the generated parts of the documentation: reference pages from the code, benchmark tables from the results."""
