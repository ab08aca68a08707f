"""Uniform quantizers for any number of bits.

They return the real numbers that integers would represent, float32. Policies then compute in float32, so numbers of
bits without a kernel can be evaluated too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.quantization.emission.rounding import ErrorFeedback


@dataclass(frozen=True)
class Grid:
    """The grid of activations: offset + n * step for whole n from `first` to `last`. Other values are clipped.

        n = clip(rint((value - offset) / step), first, last)

    offset, step: float64[], or float64[K] for K components. rint rounds half to even.
    """

    offset: NDArray[np.float64]
    step: NDArray[np.float64]
    first: int
    last: int


def quarl(weight: NDArray[Any], bits: int, per_channel: bool) -> NDArray[np.float32]:
    """Weights by QuaRL's affine quantizer (arXiv 1910.01055, section 3).

        step = (|min(weight, 0)| + |max(weight, 0)|) / 2^bits,  rounded = rint(weight / step) * step

    The zero point is a whole number and cancels out. As in QuaRL's code nothing is clipped, so a weight may need one
    level more than 2^bits.

    weight: [N, ...] with N output channels. per_channel: a step for each channel instead of one in total. QuaRL has one
    for each channel in convolutions only.
    """
    rows = _rows(weight, per_channel)
    span = np.maximum(rows.max(1, keepdims=True), 0.0) - np.minimum(rows.min(1, keepdims=True), 0.0)
    return _rounded(rows, span / 2.0**bits, weight)


def symmetric(weight: NDArray[Any], bits: int, feedback: ErrorFeedback | None = None) -> NDArray[np.float32]:
    """Weights [N, ...] with a scale for each of N output channels, as in this project's schemes.

        scale = max |weight| / (2^(bits - 1) - 1),  rounded = rint(weight / scale) * scale

    With 2 bits there are three levels: -1, 0 and 1.
    feedback: error feedback for a weight [N, K]; None to round to nearest.
    """
    rows, largest = _rows(weight, per_channel=True), 2 ** (bits - 1) - 1
    scale = np.abs(rows).max(1, keepdims=True) / largest
    if feedback is None:
        return _rounded(rows, scale, weight)
    scale = np.where(scale > 0, scale, 1.0)
    levels = feedback.round(rows.astype(np.float32), scale.astype(np.float32), rows.shape[1], -largest, largest)
    return (levels * scale).reshape(weight.shape).astype(np.float32)


def activations(low: float, high: float, bits: int) -> Grid:
    """The grid of inner activations with 2^bits levels over [low, high], widened to 0. Zero is a level."""
    low, high = min(low, 0.0), max(high, 0.0)
    largest = 2**bits - 1
    step = (high - low) / largest or 1.0
    zero_point = round(-low / step)
    return Grid(np.asarray(0.0), np.asarray(step), -zero_point, largest - zero_point)


def components(low: NDArray[Any], high: NDArray[Any], bits: int) -> Grid:
    """The grids of observations or actions: 2^bits levels over each component's range, low and high [K] included."""
    largest = 2**bits - 1
    span = np.asarray(high, np.float64) - low
    return Grid(np.asarray(low, np.float64), np.where(span > 0, span / largest, 1.0), 0, largest)


def _rows(weight: NDArray[Any], per_channel: bool) -> NDArray[np.float64]:
    return weight.reshape(len(weight) if per_channel else 1, -1).astype(np.float64)


def _rounded(rows: NDArray[np.float64], step: NDArray[np.float64], weight: NDArray[Any]) -> NDArray[np.float32]:
    # Rows of zeros have any step.
    step = np.where(step > 0, step, 1.0)
    return (np.rint(rows / step) * step).reshape(weight.shape).astype(np.float32)
