"""Compares schemes on one task over several seeds: schedules and starts the runs, and evaluates their figures."""
