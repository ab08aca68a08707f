"""A policy that draws what to do."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from actorq.domain.trajectory import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32, relu_mlp
from learner_service.networks.actions import ActionScale
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, input_size

# Of the logarithm of the standard deviation; as in the published code of arXiv 1801.01290, and everywhere since.
_LOWEST, _HIGHEST = -20.0, 2.0


class GaussianPolicy(nn.Module):
    """tanh of a Gaussian with independent components, whose means and deviations a ReLU MLP gives (arXiv 1812.05905).

    hidden_sizes: of the MLP, which is what there is unless `layers` are given with the number of their features.
    forward: observations [B, *policy_observations] of the environment's dtype and standard normal noise float32[B, A]
        -> actions float32[B, *action]; without noise, or with zeros, those of the means.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, flatten=layers is None)
        self.torso, features = layers or (relu_mlp((input_size(spec), *hidden_sizes)), hidden_sizes[-1])
        self.scale = ActionScale(spec)
        self.head = keep_fp32(Linear(features, 2 * self.scale.components))

    def forward(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the actions, within their bounds."""
        mean, log_deviation = self._gaussian(observations)
        drawn = mean if noise is None else mean + log_deviation.exp() * noise
        actions: Tensor = self.scale(torch.tanh(drawn))
        return actions

    def with_greedy(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` returns with the noise, and what it returns without, from one pass through the layers."""
        mean, log_deviation = self._gaussian(observations)
        drawn = mean + log_deviation.exp() * noise
        return self.scale(torch.tanh(drawn)), self.scale(torch.tanh(mean))

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions as critics see them, float32[B, A] in [-1, 1], and the logarithms float32[B] of their densities.

        For a = tanh(u) with u = mean + deviation * noise (arXiv 1812.05905, appendix C, equation 26):

            log p(a) = sum_components log N(u; mean, deviation) - log(1 - tanh(u)^2)
            log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))

        The second line is exact where 1 - tanh(u)^2 in float32 would be 0.
        """
        mean, log_deviation = self._gaussian(observations)
        drawn = mean + log_deviation.exp() * noise
        gaussian = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_deviation
        squash = 2.0 * (math.log(2.0) - drawn - functional.softplus(-2.0 * drawn))
        return torch.tanh(drawn), (gaussian - squash).sum(1)

    def _gaussian(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Means and logarithms of the standard deviations, float32[B, A] each."""
        mean, log_deviation = self.head(self.torso(self.observe(observations))).chunk(2, dim=1)
        return mean, log_deviation.clamp(_LOWEST, _HIGHEST)
