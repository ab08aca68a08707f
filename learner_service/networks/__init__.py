"""Policy and critic networks. The policies' graphs are published to the actors."""

from learner_service.kernels.linear import Linear, mlp
from learner_service.networks.categorical import CategoricalCritic, LayerNormPolicy, Support
from learner_service.networks.continuous import DeterministicPolicy, GaussianPolicy, RecurrentGaussianPolicy
from learner_service.networks.critics.layer_norm import LayerNormCritic
from learner_service.networks.critics.valued import LogDeviation, ValuedCritics
from learner_service.networks.distributions import DiagonalGaussianPolicy, PartwisePolicy, SoftmaxPolicy
from learner_service.networks.q_network import QNetwork
from learner_service.networks.torso import ValueNetwork
from learner_service.networks.twin import TwinCritic
