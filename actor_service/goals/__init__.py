"""Environments with goals: how they are recognized, their rewards for other goals, and hindsight."""
