"""Learning algorithms behind one interface: transitions in, priorities and a policy out."""

from learner_service.algorithms.base import (
    Algorithm,
    Learned,
    Losses,
    OnPolicyAlgorithm,
    is_on_policy,
    minibatches,
    settings_of,
)
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.algorithms.registry import algorithm_class, chosen_algorithm, make_algorithm
from learner_service.batch import Batch

__all__ = [
    "Algorithm",
    "Batch",
    "GradientAlgorithm",
    "Learned",
    "Losses",
    "OnPolicyAlgorithm",
    "PolicyGradient",
    "algorithm_class",
    "chosen_algorithm",
    "is_on_policy",
    "make_algorithm",
    "minibatches",
    "settings_of",
]
