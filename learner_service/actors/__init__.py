"""The actors of a run: membership, credit to send, and storage of their segments."""
