"""Seconds to a target return beside other libraries: `python -m benchmarks.libraries.peers`."""
