"""Runs of other libraries for peers.py. Each module runs in its library's environment, without ActorQ."""
