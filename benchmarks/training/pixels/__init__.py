"""Returns of SAC from pixels."""
