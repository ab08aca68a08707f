"""A small package for ActorQ.

Actors import `hover.environment`, and the learner imports `hover.network` and `hover.algorithm`. This module imports
none of them: actors have no PyTorch, and the learner has no Gymnasium.
"""
