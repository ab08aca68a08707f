"""Everything that produces a number: `python -m benchmarks.NAME [--json FILE] [--check]`."""
