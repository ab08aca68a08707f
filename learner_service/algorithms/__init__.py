"""Learning algorithms behind one interface: transitions in, priorities and a policy out."""

from learner_service.algorithms.base import Algorithm, Losses, Minibatch, minibatches
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.registry import algorithm_class, make_algorithm
from learner_service.algorithms.settings import settings_of

__all__ = [
    "Algorithm",
    "GradientAlgorithm",
    "Losses",
    "Minibatch",
    "algorithm_class",
    "make_algorithm",
    "minibatches",
    "settings_of",
]
