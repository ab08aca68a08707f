"""Compares schemes on one task over several seeds: plans and makes the runs, and evaluates their figures."""
