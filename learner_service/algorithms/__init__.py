"""Learning algorithms behind one interface: transitions in, priorities and a policy out."""

from learner_service.algorithms.base import Algorithm, Losses, Minibatch, minibatches, settings_of
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.registry import algorithm_class, chosen_algorithm, make_algorithm

__all__ = [
    "Algorithm",
    "GradientAlgorithm",
    "Losses",
    "Minibatch",
    "algorithm_class",
    "chosen_algorithm",
    "make_algorithm",
    "minibatches",
    "settings_of",
]
