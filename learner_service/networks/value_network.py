"""The value network of on-policy algorithms."""

from typing import Any

import torch
from torch import Tensor, nn

from actorq.config.memory import NO_MEMORY, MemoryConfig
from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear
from learner_service.networks.torso import ACTIVATIONS, Torso, make_orthogonal


class ValueNetwork(Torso):
    """The value of a state: observations [B, *policy_observations] of the environment's dtype -> float32[B].

    memory: settings of the policy's cell. The second input is then the output of that cell, float32[B, U]. A further
        layer joins it with the features of the observations. The network has no cell of its own.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        *given: Any,
        activation: str = "relu",
        memory: MemoryConfig = NO_MEMORY,
        **options: Any,
    ) -> None:
        super().__init__(spec, *given, activation=activation, **options)
        self._remembered = memory.units if memory else 0
        self.joined: nn.Module | None = None
        if memory:
            features = self.head.in_features
            layer = Linear(features + memory.units, features)
            self.joined = nn.Sequential(layer, ACTIVATIONS[activation]())

    @property
    def further_inputs(self) -> tuple[int, ...]:
        """Sizes of the inputs after the observations: the output of the policy's cell."""
        return (self._remembered,) if self._remembered else ()

    def make_orthogonal(self, gain: float, hidden: bool) -> None:
        """See `Torso`."""
        super().make_orthogonal(gain, hidden)
        if self.joined is not None:
            make_orthogonal(self.joined)

    def forward(self, observations: Tensor, remembered: Tensor | None = None) -> Tensor:
        """Return the values. remembered: float32[B, U] of the policy's cell; None without memory."""
        if self.joined is None:
            return self.computed(observations).squeeze(1)
        assert remembered is not None
        features: Tensor = self.torso(self.observe(observations))
        return self.computed(observations, self.joined(torch.cat((features, remembered), 1))).squeeze(1)
