"""Twin critics of each group of agents."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.networks.by_group.layers import Bits, Members, OfGroups
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, input_size
from learner_service.networks.twin import TwinCritic


class CriticsByGroup(Members):
    """Twin critics for each group, as one `TwinCritic`. All groups share the normalizer.

    forward: observations [B, *policy_observations], actions float32[B, A] in [-1, 1] -> values float32[2, B].
    """

    def __init__(
        self,
        kind: Callable[..., TwinCritic],
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        normalizer: Normalizer | None = None,
        layers: None = None,
    ) -> None:
        """kind: makes the critics of one group. layers: groups have no layers of the user."""
        bits = Bits(spec, input_size(spec))
        super().__init__(spec, lambda: kind(spec=spec, hidden_sizes=hidden_sizes, layers=(nn.Identity(), bits.inputs)))
        self.observe, self._bits = Observations(spec, normalizer), bits
        self.acted = self._critics[0].acted

    @property
    def _critics(self) -> list[TwinCritic]:
        return [each for each in self.each() if isinstance(each, TwinCritic)]

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return both critics' values, with gradients for their parameters."""
        return self._values(observations, actions, None)

    def judge(self, observations: Tensor, actions: Tensor, critics: int = 2) -> Tensor:
        """Values of the first critic or of both, float32[critics, B], with gradients only for the actions."""
        return self._values(observations, actions, critics)

    def _values(self, observations: Tensor, actions: Tensor, judges: int | None) -> Tensor:
        with torch.no_grad():
            seen, bits = self._bits.separated(self.observe(observations))
        x = torch.cat((seen, actions), 1)
        values = tuple(critic.values(x, judges) for critic in self._critics)
        return OfGroups(values, tuple(bit.squeeze(1) for bit in bits)).selected


def critics_of(kind: Callable[..., TwinCritic], spec: EnvironmentSpec) -> Callable[..., Any]:
    """What makes the critics of an environment: `kind` itself, or critics of this kind for each group."""
    return partial(CriticsByGroup, kind) if spec.groups else kind
