"""Environments with several agents that act at the same time: PettingZoo's parallel interface."""
