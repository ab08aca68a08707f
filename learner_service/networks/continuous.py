"""ReLU policies for continuous actions: the deterministic policy of TD3, and the Gaussian policy of SAC."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from actorq.domain.spaces import EnvironmentSpec
from learner_service.networks.actions import ActionScale
from learner_service.networks.torso import Torso

# Bounds of the log standard deviation, as in the published code of arXiv 1801.01290.
_LOWEST, _HIGHEST = -20.0, 2.0


class ContinuousPolicy(Torso):
    """A torso with `outputs_each` outputs for each component of an action, and the scale of the actions."""

    outputs_each: ClassVar[int] = 1

    def __init__(self, spec: EnvironmentSpec, *given: Any, **options: Any) -> None:
        super().__init__(spec, *given, **options)
        self.scale = ActionScale(spec)

    def outputs(self, spec: EnvironmentSpec) -> int:
        """The number of outputs of the head."""
        return self.outputs_each * math.prod(spec.actions.shape)


class DeterministicPolicy(ContinuousPolicy):
    """A policy that squashes its outputs with tanh and scales them to the bounds of the actions.

    forward: observations [B, *policy_observations] of the environment's dtype -> actions float32[B, *action]. With
        memory there are the state float32[B, S] as a second input, and the next state as a second output.
    """

    def squashed(self, observations: Tensor, remembered: Tensor | None = None) -> Tensor:
        """The actions for the critics: float32[B, A] in [-1, 1]. remembered: see `computed`."""
        return torch.tanh(self.computed(observations, remembered))

    def forward(self, observations: Tensor, state: Tensor | None = None) -> Any:
        """Return the actions, within their bounds, and the next state."""
        features, states = self.stepped(observations, state)
        actions: Tensor = self.scale(self.squashed(observations, features))
        return (actions, *states) if states else actions


class GaussianPolicy(ContinuousPolicy):
    """tanh of a Gaussian with independent components (arXiv 1812.05905). A ReLU MLP gives means and deviations.

    forward: observations [B, *policy_observations] of the environment's dtype and standard normal noise float32[B, A]
        -> actions float32[B, *action]. Without noise, or with noise of zeros, the actions follow from the means.
    """

    outputs_each = 2

    def forward(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the actions, within their bounds."""
        return self._drawn(self.computed(observations), noise)

    def with_greedy(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The actions with noise and the actions without noise, from one pass through the layers."""
        mean, log_deviation = _gaussian_of(self.computed(observations))
        drawn = mean + log_deviation.exp() * noise
        return self.scale(torch.tanh(drawn)), self.scale(torch.tanh(mean))

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions for the critics and the logarithms of their densities; see `sample_of`."""
        return sample_of(self.computed(observations), noise)

    def _drawn(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """The actions, within their bounds. outputs: of the last layer, float32[B, 2 A]."""
        mean, log_deviation = _gaussian_of(outputs)
        drawn = mean if noise is None else mean + log_deviation.exp() * noise
        actions: Tensor = self.scale(torch.tanh(drawn))
        return actions


class RecurrentGaussianPolicy(GaussianPolicy):
    """A Gaussian policy with memory.

    forward: observations [B, *policy_observations], the state float32[B, S] and perhaps noise float32[B, A] -> actions
        float32[B, *action], and the next state.
    """

    def forward(  # type: ignore[override]
        self, observations: Tensor, state: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the actions, within their bounds, and the next state."""
        features, states = self.stepped(observations, state)
        return self._drawn(self.computed(observations, features), noise), *states


def sample_of(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions for the critics, float32[B, A] in [-1, 1], and the logarithms of their densities, float32[B].

    outputs: of a Gaussian policy's last layer, float32[B, 2 A]. noise: standard normal, float32[B, A].
    For a = tanh(u) with u = mean + deviation * noise (arXiv 1812.05905, appendix C, equation 26):

        log p(a) = sum_components log N(u; mean, deviation) - log(1 - tanh(u)^2)
        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))

    The second line stays exact where 1 - tanh(u)^2 is 0 in float32.
    """
    mean, log_deviation = _gaussian_of(outputs)
    drawn = mean + log_deviation.exp() * noise
    gaussian = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_deviation
    squash = 2.0 * (math.log(2.0) - drawn - functional.softplus(-2.0 * drawn))
    return torch.tanh(drawn), (gaussian - squash).sum(1)


def _gaussian_of(outputs: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_deviation = outputs.chunk(2, dim=1)
    return mean, log_deviation.clamp(_LOWEST, _HIGHEST)
