"""ReLU networks for continuous actions: the base class, and the deterministic policy of TD3."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from actorq.domain.trajectory import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32, mlp
from learner_service.networks.actions import ActionScale
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, input_size


class ContinuousPolicy(nn.Module):
    """A ReLU MLP with `outputs` outputs for each component of an action, and the scale of the actions.

    hidden_sizes: units of the MLP's layers.
    layers: the user's layers in place of the MLP, with the number of their features.
    """

    outputs: ClassVar[int] = 1

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, flatten=layers is None)
        self.torso, features = layers or (mlp((input_size(spec), *hidden_sizes)), hidden_sizes[-1])
        self.scale = ActionScale(spec)
        self.head = keep_fp32(Linear(features, self.outputs * self.scale.components))

    def computed(self, observations: Tensor) -> Tensor:
        """The outputs of the last layer, float32[B, outputs * components]."""
        outputs: Tensor = self.head(self.torso(self.observe(observations)))
        return outputs


class DeterministicPolicy(ContinuousPolicy):
    """A policy that squashes its outputs with tanh and scales them to the bounds of the actions.

    forward: observations [B, *policy_observations] of the environment's dtype -> actions float32[B, *action].
    """

    def squashed(self, observations: Tensor) -> Tensor:
        """The actions for the critics: float32[B, A] in [-1, 1]."""
        return torch.tanh(self.computed(observations))

    def forward(self, observations: Tensor) -> Tensor:
        """Return the actions, within their bounds."""
        actions: Tensor = self.scale(self.squashed(observations))
        return actions
