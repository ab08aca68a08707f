"""Runs of other libraries for benchmarks/peers.py. Each module runs where its library is installed, without ActorQ."""
