"""D4PG's networks: Acme's MLP and policy (`LayerNormMLP`, arXiv 2006.00979), and a critic of return distributions.

The critic predicts a distribution over fixed values (Bellemare et al. 2017, arXiv 1707.06887).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
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


class CategoricalCritic(FeatureNetwork):
    """Logits over `atoms` values of the return of an action.

    forward: observations [B, *policy_observations], actions float32[B, components] in [-1, 1]
             -> logits float32[B, atoms].
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], atoms: int, **given: Any) -> None:
        super().__init__(spec, **given)
        components = int(torch.Size(spec.actions.shape).numel())
        self.torso = layer_norm_mlp((self.inputs + components, *hidden_sizes))
        self.head = keep_fp32(Linear(hidden_sizes[-1], atoms))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.torso(torch.cat((self.seen(observations), actions), 1)))  # type: ignore[no-any-return]


class Support(nn.Module):
    """The values z_1 < ... < z_N of a distribution of returns, evenly spaced from `lowest` to `highest`."""

    values: Tensor

    def __init__(self, lowest: float, highest: float, atoms: int) -> None:
        super().__init__()
        self.lowest, self.highest, self._last = lowest, highest, atoms - 1
        self.register_buffer("values", torch.linspace(lowest, highest, atoms), persistent=False)

    def mean(self, logits: Tensor) -> Tensor:
        """The expected return, float32[B], from logits float32[B, N]."""
        return torch.softmax(logits, 1) @ self.values

    def project(self, probabilities: Tensor, returns: Tensor, discounts: Tensor) -> Tensor:
        """Project the distribution of `returns + discounts * Z` onto the support (arXiv 1707.06887, eq. 7).

            p'_i = sum_j p_j [1 - |clip(R + gamma z_j, z_1, z_N) - z_i| / dz]_0^1

        probabilities: float32[B, N] of Z; returns, discounts: float32[B]. A discount of 0 puts all mass on R.
        Returns float32[B, N]. Each moved value gives a share to both of its neighbors. Two scatter-adds are ten times
        as fast as the products of all pairs (B = 256, N = 51, one core). A GPU scatters in any order, so two runs would
        have different numbers. A GPU therefore multiplies all pairs.
        """
        moved = (returns.unsqueeze(1) + discounts.unsqueeze(1) * self.values).clamp_(self.lowest, self.highest)
        positions = moved.sub_(self.lowest).mul_(self._last / (self.highest - self.lowest)).clamp_(0, self._last)
        if positions.device.type != "cpu":
            atoms = torch.arange(self._last + 1, device=positions.device).unsqueeze(1)
            shares = (1.0 - (positions.unsqueeze(1) - atoms).abs()).clamp_(min=0.0)
            return (shares * probabilities.unsqueeze(1)).sum(2)
        # The last value has no upper neighbor, so it counts as the upper neighbor of the value below.
        below = positions.floor().clamp_(max=self._last - 1)
        to_above = positions.sub_(below).mul_(probabilities)
        index = below.to(torch.int64)
        projected = torch.zeros_like(probabilities)
        projected.scatter_add_(1, index, probabilities - to_above)
        return projected.scatter_add_(1, index.add_(1), to_above)
