"""Observations scaled to mean 0 and deviation 1, as a part of the networks, so that an actor needs only the graph."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.domain.trajectory import EnvironmentSpec

# Of a component that hardly varies, so that its noise is not blown up.
_SMALLEST_DEVIATION = 1e-4
# Normalized values are kept within this many deviations: a rare one should not drown all others, in a quantized
# layer least of all.
_LIMIT = 10.0


class Normalizer(nn.Module):
    """(observation - mean) * scale, clipped to [-10, 10]; the identity until it is told otherwise.

    mean, scale: float32[*observation] of a single frame, buffers and thus published with the policy's parameters.
    forward: float32[B, *observation] or, for stacked frames, float32[B, K, *observation] -> the same shape.

    All networks of an algorithm share one instance, so that they always see the same thing.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(spec.observations.shape))
        self.register_buffer("scale", torch.ones(spec.observations.shape))

    def forward(self, observations: Tensor) -> Tensor:
        """Return normalized observations."""
        return ((observations - self.mean) * self.scale).clamp(-_LIMIT, _LIMIT)

    def set(self, mean: NDArray[np.floating], std: NDArray[np.floating]) -> None:
        """Take over the mean and the standard deviation of each component of an observation, [*observation]."""
        self.mean.copy_(torch.from_numpy(np.asarray(mean, np.float32)))
        self.scale.copy_(torch.from_numpy((1.0 / np.maximum(std, _SMALLEST_DEVIATION)).astype(np.float32)))
