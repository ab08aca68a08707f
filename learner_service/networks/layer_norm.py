"""Acme's networks for continuous control (`LayerNormMLP`, arXiv 2006.00979), and D4PG's policy."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32
from learner_service.networks.actions import ActionScale
from learner_service.networks.observations import FeatureNetwork

# Variance of the last layer's outputs for inputs of variance 1. A new policy therefore acts near the middle of the
# range.
_NEAR_ZERO = 1e-4


def layer_norm_mlp(sizes: Sequence[int]) -> nn.Sequential:
    """float32[B, sizes[0]] -> float32[B, sizes[-1]]: LayerNorm and tanh after the first layer, ELU after the others."""
    layers: list[nn.Module] = []
    for number, (inputs, units) in enumerate(pairwise(sizes)):
        linear = Linear(inputs, units)
        nn.init.uniform_(linear.weight, -math.sqrt(1 / units), math.sqrt(1 / units))
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ELU()] if number else [keep_fp32(linear), nn.LayerNorm(units), nn.Tanh()]
    return nn.Sequential(*layers)


class LayerNormPolicy(FeatureNetwork):
    """A deterministic policy: observations [B, *policy_observations] -> actions float32[B, *action] within bounds.

    hidden_sizes: units of the MLP's layers. given: see `FeatureNetwork`.
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], **given: Any) -> None:
        super().__init__(spec, **given)
        self.torso = layer_norm_mlp((self.inputs, *hidden_sizes))
        self.scale = ActionScale(spec)
        self.head = keep_fp32(Linear(hidden_sizes[-1], self.scale.components))
        nn.init.normal_(self.head.weight, std=math.sqrt(_NEAR_ZERO / hidden_sizes[-1]))
        nn.init.zeros_(self.head.bias)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the environment's actions."""
        return self.scale(self.squashed(observations))  # type: ignore[no-any-return]

    def squashed(self, observations: Tensor) -> Tensor:
        """The actions for the critics, float32[B, components] in [-1, 1]."""
        return self.head(self.torso(self.seen(observations))).tanh()  # type: ignore[no-any-return]
