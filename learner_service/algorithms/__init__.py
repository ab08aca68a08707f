"""Learning algorithms behind one interface: transitions in, priorities and a policy out."""

from learner_service.algorithms.base import (
    Algorithm,
    Learned,
    Losses,
    Minibatch,
    OnPolicyAlgorithm,
    is_on_policy,
    minibatches,
    settings_of,
)
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.algorithms.registry import algorithm_class, chosen_algorithm, make_algorithm

__all__ = [
    "Algorithm",
    "GradientAlgorithm",
    "Learned",
    "Losses",
    "Minibatch",
    "OnPolicyAlgorithm",
    "PolicyGradient",
    "algorithm_class",
    "chosen_algorithm",
    "is_on_policy",
    "make_algorithm",
    "minibatches",
    "settings_of",
]
