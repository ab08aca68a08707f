"""Fast implementations of network operations, each with a plain fallback."""
