"""Runs of other libraries. Each module runs in its library's environment, without ActorQ."""
