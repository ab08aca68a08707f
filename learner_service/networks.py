"""The policy and critic modules. What is defined here is what actors run: the quantizer gets its exported graph."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from actorq.trajectory import EnvironmentSpec


class QNetwork(nn.Module):
    """Action values of discrete actions: a ReLU MLP with one head, or two dueling ones (arXiv 1511.06581, eq. 9).

    forward: observations [B, *observation] of any dtype -> q_values float32[B, actions].
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], dueling: bool) -> None:
        super().__init__()
        inputs = 1
        for size in spec.observations.shape:
            inputs *= size
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise((inputs, *hidden_sizes)):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.torso = nn.Sequential(*layers)
        self.advantage = nn.Linear(hidden_sizes[-1], spec.discrete_actions)
        self.value = nn.Linear(hidden_sizes[-1], 1) if dueling else None
        # Decided once, so that the exported graph has neither a cast nor a reshape where none is needed.
        self._cast = spec.observations.dtype != "float32"
        self._flatten = len(spec.observations.shape) != 1

    def forward(self, observations: Tensor) -> Tensor:
        """Return the value of each action."""
        x = observations.to(torch.float32) if self._cast else observations
        x = self.torso(x.flatten(1) if self._flatten else x)
        advantage: Tensor = self.advantage(x)
        if self.value is None:
            return advantage
        return self.value(x) + advantage - advantage.mean(dim=-1, keepdim=True)  # type: ignore[no-any-return]
