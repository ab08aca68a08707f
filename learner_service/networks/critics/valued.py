"""The networks of IQL: twin critics with a value network, and the deviation of a Gaussian policy."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.networks.torso import ValueNetwork
from learner_service.networks.twin import TwinCritic

# Bounds of the log standard deviation, as in the published code of arXiv 2110.06169.
_LOWEST, _HIGHEST = -5.0, 2.0


class ValuedCritics(nn.Module):
    """Two critics of actions, and a value of states. They share layers for images and the user's own layers.

    forward: observations [B, *policy_observations] of the environment's dtype, actions float32[B, A] in [-1, 1]
        -> Q float32[2, B], V float32[B].
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], **given: Any) -> None:
        super().__init__()
        self.critics = TwinCritic(spec, hidden_sizes, **given)
        self.value = ValueNetwork(spec, hidden_sizes, **given)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the actions and of the states."""
        return self.critics(observations, actions), self.value(observations)


class LogDeviation(nn.Module):
    """The log standard deviation of each component of an action, the same in every state; at first 0.

    forward: float32[A].
    """

    def __init__(self, components: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(components))

    def forward(self) -> Tensor:
        """Return the present values, within their bounds."""
        return self.values.clamp(_LOWEST, _HIGHEST)
