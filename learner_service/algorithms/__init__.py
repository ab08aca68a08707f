"""Learning algorithms behind one interface: transitions in, priorities and a policy out."""

from learner_service.algorithms.base import Algorithm, Losses
from learner_service.algorithms.registry import make_algorithm

__all__ = ["Algorithm", "Losses", "make_algorithm"]
