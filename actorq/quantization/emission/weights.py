"""Rounds weights to integers: symmetric, half to even, with a scale for each tensor, channel or block.

Sources: Jacob et al. 2018 (arXiv 1712.05877), section 2.1, for the affine map real = scale (q - zero_point);
Krishnamoorthi 2018 (arXiv 1806.08342), sections 2.1 and 3.1, for symmetric weights and a scale for each channel;
Lam et al. 2022 (arXiv 1910.01055), section 3, for both in reinforcement learning.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.policy import INT4_PER_BLOCK, INT8_PER_CHANNEL, INT8_PER_TENSOR
from actorq.quantization.emission.rounding import ErrorFeedback

# The largest int8 weight and the largest uint8 activation; the lowest and highest 4-bit value.
INT8_LARGEST, UINT8_LARGEST = 127.0, 255.0
INT4_LOWEST, INT4_HIGHEST = -8.0, 7.0
# A scale below the smallest normal float32 is replaced by 1.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
# Number of values per step, so that they stay in a core's cache. This halves the time of a 2048 x 2048 layer.
_CHUNK = 32768
_STRIP = 16


class _Rounded(ABC):
    def mean_error(self, weight: NDArray[np.float32], mean: NDArray[np.float32]) -> NDArray[np.float32]:
        """(weight - rounded weight) mean, float32[N], for a weight float32[N, K] and mean inputs float32[K]."""
        rows = contiguous(weight)
        errors = np.empty(len(rows), np.float32)
        for part in _chunks(rows):
            # The difference is computed first, because float32 products of whole weights would lose the small error.
            np.vecdot(rows[part] - self._restored(part, rows.shape[1]), mean, out=errors[part])
        return errors

    @abstractmethod
    def _restored(self, part: slice, inputs: int) -> NDArray[np.float32]:
        """The rounded weights of these output channels."""


@dataclass(frozen=True)
class Int8Weight(_Rounded):
    """weight ~ values * scale, with values int8[N, ...] in [-127, 127], and scale float32[] or float32[N], above 0."""

    values: NDArray[np.int8]
    scale: NDArray[np.float32]

    @property
    def form(self) -> str:
        """The format for layer reports."""
        return INT8_PER_CHANNEL if self.scale.ndim else INT8_PER_TENSOR

    @property
    def tensor(self) -> NDArray[np.int8]:
        """int8[K, N], the layout of operators of linear layers."""
        return contiguous(self.values.T)

    def _restored(self, part: slice, inputs: int) -> NDArray[np.float32]:
        return self.values[part] * (self.scale[part, None] if self.scale.ndim else self.scale)


@dataclass(frozen=True)
class Int4Weight(_Rounded):
    """weight ~ (q - 8) * scale, in the format of MatMulNBits of com.microsoft.

    tensor: uint8[N, B, block / 2], q in [0, 15], two per byte, low half first; scale: float32[N, B], not 0.
    """

    tensor: NDArray[np.uint8]
    scale: NDArray[np.float32]
    form = INT4_PER_BLOCK

    def _restored(self, part: slice, inputs: int) -> NDArray[np.float32]:
        packed = self.tensor[part]
        values = np.empty((*packed.shape, 2), np.float32)
        np.bitwise_and(packed, 15, out=values[..., 0], casting="unsafe")
        np.right_shift(packed, 4, out=values[..., 1], casting="unsafe")
        values -= np.float32(8)
        values *= self.scale[part][:, :, None, None]
        return values.reshape(len(packed), -1)[:, :inputs]


def quantize_int8(
    weight: NDArray[np.float32],
    per_tensor_error: float = 0.0,
    least: NDArray[np.float32] | None = None,
    feedback: ErrorFeedback | None = None,
) -> Int8Weight:
    """Int8 weights with one scale if that is precise enough, else with one for each channel.

    weight: float32[N, ...], finite, N output channels, in any memory layout.
    per_tensor_error: largest relative error for one scale. It is the Frobenius norm of weight - values * scale
        relative to that of the weight, per channel, then the root mean square over channels. Channels with small and
        large weights therefore count equally. 0 gives each channel its own scale.
    least: float32[N], lower bounds of the scales, for layers whose bias uses the same scales.
    feedback: error feedback for a weight float32[N, K]; None to round to nearest.

    In float32 arithmetic, with the maximum over the channel, or over the tensor with one scale:

        scale = max(max |weight| / 127, least), or 1 where that is below the smallest normal float32
        values = rint(weight / scale), rint rounding half to even

    The error of each weight is at most scale / 2. With feedback the scales are the same: the errors of rounding to
    nearest decide them, and emission.rounding computes the values.
    """
    rows = contiguous(weight.reshape(len(weight), -1))
    largest = np.empty(len(rows), np.float32)
    for part in _chunks(rows):
        chunk = rows[part]
        largest[part] = np.maximum(chunk.max(axis=1), -chunk.min(axis=1))
    scales = largest / np.float32(INT8_LARGEST)
    if least is not None:
        np.maximum(scales, least, out=scales)
    values = np.empty(rows.shape, np.int8)
    one = _usable(scales.max(initial=0))
    if per_tensor_error and _fill(values, rows, np.full(len(rows), one), per_tensor_error):
        scales = one
    else:
        scales = _usable(scales)
        if feedback is None:
            _fill(values, rows, scales)
    if feedback is not None:
        values[:] = feedback.round(rows, scales.reshape(-1, 1), rows.shape[1], -int(INT8_LARGEST), int(INT8_LARGEST))
    return Int8Weight(values.reshape(weight.shape), scales)


def quantize_int4(weight: NDArray[np.float32], block: int, feedback: ErrorFeedback | None = None) -> Int4Weight:
    """4-bit weights in blocks along the inputs.

    weight: float32[N, K], finite.
    block: number of weights that share a scale, even; the last block is padded with zeros.
    feedback: as in quantize_int8.
    There are B = ceil(K / block) blocks. Let w be the weight of largest magnitude in a block:

        scale = -w / 8, or 1 where that is not a normal float32;  q = min(rint(weight / scale) + 8, 15)

    w becomes -8, so all 16 values are used, as in ONNX Runtime's blocks and ggml's Q4_0. The error of a weight is at
    most |scale| / 2. Weights beyond 7.5 scales on the other side may have an error of |scale|.
    """
    weight = contiguous(weight)
    units, inputs = weight.shape
    blocks = -(-inputs // block)
    packed = np.empty((units, blocks, block // 2), np.uint8)
    scales = np.empty((units, blocks), np.float32)
    padded = np.zeros((_step(weight), blocks * block), np.float32)
    for part in _chunks(weight):
        count = len(weight[part])
        padded[:count, :inputs] = weight[part]
        chunk = padded[:count].reshape(-1, blocks, block)
        high, low = chunk.max(axis=2), chunk.min(axis=2)
        scale = np.where(high > -low, high, low) / np.float32(INT4_LOWEST)
        scale = np.where(np.abs(scale) < SMALLEST_SCALE, np.float32(1), scale)
        scales[part] = scale
        if feedback is None:
            chunk /= scale[:, :, None]
            np.rint(chunk, out=chunk)
            np.minimum(chunk, np.float32(INT4_HIGHEST), out=chunk)
        else:
            padded[:count, :inputs] = feedback.round(weight[part], scale, block, int(INT4_LOWEST), int(INT4_HIGHEST))
        # 16 high + low packs two neighbors into a byte; 136 = 16 * 8 + 8 shifts both to [0, 15].
        packed[part] = chunk[:, :, 1::2] * np.float32(16) + chunk[:, :, 0::2] + np.float32(136)
    return Int4Weight(packed, scales)


def contiguous(rows: NDArray[Any]) -> NDArray[Any]:
    """The same matrix in C order."""
    if rows.flags.c_contiguous:
        return rows
    result = np.empty(rows.shape, rows.dtype)
    # Strips of a few columns keep the written part in the cache, which is much faster for large matrices.
    for start in range(0, rows.shape[1], _STRIP):
        result[:, start : start + _STRIP] = rows[:, start : start + _STRIP]
    return result


def _fill(
    values: NDArray[np.int8], rows: NDArray[np.float32], scales: NDArray[np.float32], allowed: float | None = None
) -> bool:
    """Quantize into `values`. Returns False as soon as the error exceeds `allowed`."""
    error = 0.0
    # Reused for all chunks, because allocating memory takes longer than the arithmetic.
    scaled_rows, rounded_rows = np.empty((2, _step(rows), rows.shape[1]), np.float32)
    for part in _chunks(rows):
        count = len(rows[part])
        scaled = np.divide(rows[part], scales[part, None], out=scaled_rows[:count])
        rounded = np.rint(scaled, out=rounded_rows[:count])
        values[part] = rounded
        if allowed is not None:
            norms = np.vecdot(scaled, scaled)
            lost = np.subtract(scaled, rounded, out=rounded)
            # A channel whose squares underflow is lost completely, unless it is 0.
            vanished = (norms == 0) & scaled.any(axis=1) if not norms.all() else False
            error += float((np.vecdot(lost, lost) / np.maximum(norms, SMALLEST_SCALE) + vanished).sum())
            if error > allowed**2 * len(rows):
                return False
    return True


def _usable(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    # Below the smallest normal number, the weights are zeros or tiny, and any scale works.
    return np.where(scale < SMALLEST_SCALE, np.float32(1), scale)


def _chunks(rows: NDArray[np.float32]) -> Iterator[slice]:
    step = _step(rows)
    for start in range(0, len(rows), step):
        yield slice(start, start + step)


def _step(rows: NDArray[np.float32]) -> int:
    return int(max(1, _CHUNK // max(1, rows.shape[1])))
