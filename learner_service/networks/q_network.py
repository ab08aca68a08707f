"""The network of DQN: values of discrete actions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actorq.config.memory import NO_MEMORY, MemoryConfig
from actorq.domain.spaces import EnvironmentSpec
from learner_service.networks.by_group.layers import head_of
from learner_service.networks.encoders import AllowedChoices, Observed
from learner_service.networks.memory import make_cell
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, hidden_layers
from learner_service.networks.torso import Remembering


class QNetwork(Remembering):
    """Hidden layers and one head, or two dueling heads (arXiv 1511.06581, eq. 9).

    hidden_sizes: units of a ReLU MLP's layers.
    layers: the user's layers instead of the MLP, with the number of their features.
    memory: settings of a recurrent cell between hidden layers and heads.
    forward: observations [B, *policy_observations] of the environment's dtype -> q_values float32[B, actions]. For an
        action of several discrete parts: the values of each part, one after the other (arXiv 1711.08946). With memory
        there are the state float32[B, S] as a second input, and the next state as a second output.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        dueling: bool,
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
        memory: MemoryConfig = NO_MEMORY,
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, layers and layers[0])
        self.torso, features = hidden_layers(spec, hidden_sizes, layers)
        self.memory = make_cell(memory, features)
        features = features if self.memory is None else self.memory.units
        self._allowed, self._sizes = AllowedChoices(spec), spec.sizes
        self.advantage = head_of(spec, features, spec.acting_size)
        self.value = head_of(spec, features, 1) if dueling else None

    def forward(self, observations: Observed, state: Tensor | None = None) -> Any:
        """Return the value of each action, and the next state."""
        features, states = self.stepped(observations, state)
        values = self.valued(observations, features)
        return (values, *states) if states else values

    def valued(self, observations: Observed, x: Any) -> Tensor:
        """The value of each action, float32[B, actions]. x: inputs of the heads."""
        values: Tensor = self.advantage(x)
        if self.value is not None:
            # Advantages of each discrete part (arXiv 1711.08946, eq. 1) less their mean.
            parts = (values,) if len(self._sizes) == 1 else torch.split(values, list(self._sizes), 1)
            state = self.value(x)
            centered = [state + part - part.mean(dim=-1, keepdim=True) for part in parts]
            values = centered[0] if len(centered) == 1 else torch.cat(centered, 1)
        return self._allowed(values, observations)
