"""Runs of other libraries for benchmarks/peers.py: each module runs in an environment that has its library, not ActorQ."""
