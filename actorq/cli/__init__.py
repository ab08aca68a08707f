"""The `actorq` command."""
