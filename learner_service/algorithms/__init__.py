"""Learning algorithms behind one interface: transitions in, priorities and a policy out."""

from learner_service.algorithms.base import Algorithm, Losses, Minibatch, minibatches
from learner_service.algorithms.registry import algorithm_class, make_algorithm

__all__ = ["Algorithm", "Losses", "Minibatch", "algorithm_class", "make_algorithm", "minibatches"]
