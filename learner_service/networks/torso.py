"""Hidden layers with one linear head: the base of most policies, and the value network of on-policy algorithms."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actorq.config.memory import NO_MEMORY, MemoryConfig
from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear
from learner_service.networks.by_group.layers import head_of
from learner_service.networks.encoders import Observed
from learner_service.networks.memory import Cell, Unrolled, make_cell
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, hidden_layers

# Gain of the orthogonal initial weights of hidden layers.
_HIDDEN_GAIN = math.sqrt(2)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


class Remembering(nn.Module):
    """Hidden layers, and perhaps a recurrent cell after them.

    observe, torso: the inputs of the hidden layers, and these layers. memory: the cell; None without memory.
    """

    observe: Observations
    torso: nn.Module
    memory: Cell | None

    @property
    def state_size(self) -> int:
        """Numbers in the state of the memory, S; 0 without memory."""
        return 0 if self.memory is None else self.memory.state_size

    @property
    def further_inputs(self) -> tuple[int, ...]:
        """Sizes of the inputs after the observations, float32[B, size] each: the state."""
        return (self.state_size,) if self.state_size else ()

    def stepped(self, observations: Observed, state: Tensor | None) -> tuple[Any, tuple[Tensor, ...]]:
        """The inputs of the head, float32[B, features], and the next state [B, S] if there is a memory.

        state: float32[B, S] before the step; None without memory.
        """
        # With groups, these are the features of each group, which only the heads read.
        features: Any = self.torso(self.observe(observations))
        if self.memory is None:
            return features, ()
        assert state is not None
        features, following = self.memory.step(features, state)
        return features, (following,)

    def unrolled(self, observations: Tensor, state: Tensor, begins: Tensor) -> Unrolled:
        """The steps of the memory on observations [T, B, *policy_observation]; see `Cell.unrolled`."""
        assert self.memory is not None
        features: Tensor = self.torso(self.observe(observations.flatten(0, 1)))
        return self.memory.unrolled(features.view(*observations.shape[:2], -1), state, begins)


class Torso(Remembering):
    """Observations, hidden layers, perhaps a recurrent cell, and a linear head with `outputs(spec)` outputs.

    hidden_sizes: units of an MLP's layers. activation: a key of `ACTIVATIONS`, for the MLP.
    layers: the user's layers or convolutions instead of the MLP, with the number of their features.
    memory: settings of the cell. The attribute is the cell; None without memory.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
        activation: str = "relu",
        memory: MemoryConfig = NO_MEMORY,
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, layers and layers[0])
        self.torso, features = hidden_layers(spec, hidden_sizes, layers, ACTIVATIONS[activation])
        self.memory, self._longest = make_cell(memory, features), memory.sequence_length
        features = features if self.memory is None else self.memory.units
        self.head = head_of(spec, features, self.outputs(spec))

    def outputs(self, spec: EnvironmentSpec) -> int:
        """The number of outputs of the head; one by default."""
        return 1

    def make_orthogonal(self, gain: float, hidden: bool) -> None:
        """Give all layers orthogonal initial weights, and biases of 0. A cell spreads its memory over a sequence.

        gain: of the head; sqrt(2) for hidden layers. hidden: whether to change hidden layers. The gains are those of
        Huang et al. 2022, "The 37 Implementation Details of Proximal Policy Optimization", detail 2.
        """
        if hidden:
            make_orthogonal(self.torso, _HIDDEN_GAIN)
        if self.memory is not None:
            make_orthogonal(self.memory, 1.0)
            self.memory.spread_memory(self._longest)
        make_orthogonal(self.head, gain)

    def computed(self, observations: Observed, remembered: Any = None) -> Tensor:
        """The outputs of the last layer, float32[B, outputs].

        remembered: the inputs of the head, if they are already computed, such as the outputs of the memory.
        """
        if remembered is None:
            remembered = self.torso(self.observe(observations))
        outputs: Tensor = self.head(remembered)
        return outputs


class ValueNetwork(Torso):
    """The value of a state: observations [B, *policy_observations] of the environment's dtype -> float32[B].

    memory: settings of the policy's cell. The second input is then the output of that cell, float32[B, U]. A further
        layer joins it with the features of the observations. The network has no cell of its own.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
        activation: str = "relu",
        memory: MemoryConfig = NO_MEMORY,
    ) -> None:
        super().__init__(spec, hidden_sizes, normalizer, layers, activation)
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


def make_orthogonal(module: nn.Module, gain: float = _HIDDEN_GAIN) -> None:
    """Give all layers of a module orthogonal initial weights with this gain, and biases of 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
