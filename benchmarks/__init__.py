"""All measurements: `python -m benchmarks.FOLDER.NAME [--json FILE] [--check]`."""
