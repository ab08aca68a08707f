"""The network of DQN: values of discrete actions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32
from learner_service.networks.encoders import AllowedChoices, Observed
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, hidden_layers


class QNetwork(nn.Module):
    """Hidden layers and one head, or two dueling heads (arXiv 1511.06581, eq. 9).

    hidden_sizes: units of a ReLU MLP's layers.
    layers: the user's layers instead of the MLP, with the number of their features.
    forward: observations [B, *policy_observations] of the environment's dtype -> q_values float32[B, actions]. For an
        action of several discrete parts: the values of each part, one after the other (arXiv 1711.08946).
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        dueling: bool,
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, flatten=layers is None)
        self.torso, features = hidden_layers(spec, hidden_sizes, layers)
        self._allowed, self._sizes = AllowedChoices(spec), spec.sizes
        self.advantage = keep_fp32(Linear(features, spec.acting_size))
        self.value = keep_fp32(Linear(features, 1)) if dueling else None

    def forward(self, observations: Observed) -> Tensor:
        """Return the value of each action."""
        x = self.torso(self.observe(observations))
        values: Tensor = self.advantage(x)
        if self.value is not None:
            # Advantages of each discrete part (arXiv 1711.08946, eq. 1) less their mean.
            parts = (values,) if len(self._sizes) == 1 else torch.split(values, list(self._sizes), 1)
            state = self.value(x)
            centered = [state + part - part.mean(dim=-1, keepdim=True) for part in parts]
            values = centered[0] if len(centered) == 1 else torch.cat(centered, 1)
        return self._allowed(values, observations)
