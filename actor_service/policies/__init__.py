"""Policies in an actor: from the stream to a session that acts."""
