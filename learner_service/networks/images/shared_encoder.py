"""A Gaussian policy and twin critics with the same layers for images.

The encoder is the convolutions of a single image, with orthogonal initial weights. For other observations it is all
layers that `feature_layers` makes. Policy and critics have a trunk of their own after it: a linear layer, layer
normalization and tanh (arXiv 1910.01741, 2107.09645). The policy has a copy of the encoder, so that it is a complete
graph for actors.

A further linear layer with a ReLU in the encoder would not learn: pictures of a task differ in few pixels, and all of
its units may become 0 in the first updates (docs/decisions/0088-pixels.md).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear, mlp
from learner_service.networks.continuous import GaussianPolicy, sample_of
from learner_service.networks.critics.layer_norm import LayerNormCritic
from learner_service.networks.encoders import ImageLayers, Observed
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.torso import make_orthogonal
from learner_service.networks.twin import TwinCritic

# Features of an observation after the trunk.
_TRUNK = 50


class SharedEncoderPolicy(GaussianPolicy):
    """A Gaussian policy after an encoder that its own loss does not train.

    forward: see `GaussianPolicy`; observations go through the policy's copy of the encoder.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
    ) -> None:
        assert layers is not None
        encoder, features = _encoder(layers)
        own = nn.Sequential(_trunk(features), *mlp((_TRUNK, *hidden_sizes)))
        super().__init__(spec, hidden_sizes, normalizer, (nn.Sequential(encoder, own), hidden_sizes[-1]))

    @property
    def encoder(self) -> nn.Module:
        """The policy's copy of the encoder."""
        encoder: nn.Module = self.torso[0]  # type: ignore[index]
        return encoder

    def sample(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions for the critics and the logarithms of their densities; see `sample_of`.

        features: of `SharedEncoderCritic.encoded`, float32[B, F].
        """
        return sample_of(self.head(self.torso[1](features)), noise)  # type: ignore[index]


class SharedEncoderCritic(TwinCritic):
    """Twin critics after an encoder, which their loss trains.

    forward: see `TwinCritic`.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        layers: tuple[nn.Module, int] | None = None,
        **given: Any,
    ) -> None:
        assert layers is not None
        encoder, features = _encoder(layers)
        make_orthogonal(encoder)
        super().__init__(spec, hidden_sizes, layers=(encoder, _TRUNK), **given)
        self.trunk = _trunk(features)

    def encoded(self, observations: Observed) -> Tensor:
        """The encoder's features, float32[B, F], of observations [B, *policy_observations]."""
        features: Tensor = self.features(self.observe(observations))
        return features

    def seen(self, observations: Tensor) -> Tensor:
        """The features of observations after the trunk, float32[B, 50]."""
        features: Tensor = self.trunk(self.encoded(observations))
        return features

    def valued(self, features: Tensor, actions: Tensor) -> Tensor:
        """Both critics' values, float32[2, B], with gradients for their parameters and for the features."""
        return self.values(torch.cat((self.trunk(features), actions), 1))

    def judge(self, features: Tensor, actions: Tensor, critics: int = 2) -> Tensor:
        """As in `TwinCritic`, of the encoder's features instead of observations."""
        with torch.no_grad():
            seen = self.trunk(features)
        return self.values(torch.cat((seen, actions), 1), critics)


class SharedEncoderLayerNormCritic(SharedEncoderCritic, LayerNormCritic):
    """As `SharedEncoderCritic`, with layer normalization in the hidden layers of the critics."""


def _encoder(layers: tuple[nn.Module, int]) -> tuple[nn.Module, int]:
    """The shared part of the layers, and the number of its features."""
    module, _ = layers
    return module.convolutions if isinstance(module, ImageLayers) else layers


def _trunk(features: int) -> nn.Sequential:
    return nn.Sequential(Linear(features, _TRUNK), nn.LayerNorm(_TRUNK), nn.Tanh())
