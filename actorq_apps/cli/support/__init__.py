"""Commands that help to diagnose problems."""
