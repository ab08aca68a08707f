"""Normalizes observations to mean 0 and deviation 1 inside the networks, so that actors need only the graph."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec

# Lower bound of the deviation, so that the noise of a nearly constant component is not amplified.
_SMALLEST_DEVIATION = 1e-4
# Limit of normalized values. Rare large values would dominate the others, most of all in quantized layers.
_LIMIT = 10.0


class Normalizer(nn.Module):
    """(observation - mean) * scale, clipped to [-10, 10]. Mean 0 and scale 1 until `set` is called.

    Bits and one-hot categories keep mean 0 and scale 1.

    mean, scale: float32[*observation] of a frame, or [*vector] in observations of several arrays; published with the
        parameters of a policy.
    forward: float32[B, *observation], or float32[B, K, *observation] for stacked frames -> the same shape.

    All networks with the same inputs share one instance, so that these always agree.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__()
        shape = (spec.vector or spec.observations).shape
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self._indicators = np.flatnonzero(spec.is_indicator).tolist()

    def forward(self, observations: Tensor) -> Tensor:
        """Return normalized observations."""
        return ((observations - self.mean) * self.scale).clamp(-_LIMIT, _LIMIT)

    def set(self, mean: NDArray[np.floating], std: NDArray[np.floating]) -> None:
        """Set the mean and the standard deviation of each component of an observation, [*observation]."""
        self.mean.copy_(torch.from_numpy(np.asarray(mean, np.float32)))
        self.scale.copy_(torch.from_numpy((1.0 / np.maximum(std, _SMALLEST_DEVIATION)).astype(np.float32)))
        if self._indicators:
            self.mean[self._indicators] = 0.0
            self.scale[self._indicators] = 1.0
