"""Policy and critic modules. What is defined here is what actors run: the quantizer gets its graph."""

from learner_service.networks.actions import ActionScale
from learner_service.networks.categorical import CategoricalCritic, Support
from learner_service.networks.layer_norm import LayerNormPolicy
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.q_network import QNetwork

__all__ = ["ActionScale", "CategoricalCritic", "LayerNormPolicy", "Normalizer", "QNetwork", "Support"]
