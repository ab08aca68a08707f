"""Runs of other libraries for peers.py. Each module runs where its library is installed, without ActorQ."""
