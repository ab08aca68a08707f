"""Environments with goals: recognizes them, computes their rewards for other goals, and adds hindsight."""
