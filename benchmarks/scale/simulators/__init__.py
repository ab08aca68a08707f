"""Simulators that play through an actor: their training, many streams at once, and frozen or killed simulators."""
