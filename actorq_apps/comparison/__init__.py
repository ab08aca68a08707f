"""Compares schemes on one task over several seeds: schedules and makes the runs, and evaluates their figures."""
