"""The actors of a run: who they are, when they may send, and what becomes of what they send."""
