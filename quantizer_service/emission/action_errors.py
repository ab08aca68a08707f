"""Defines the errors of actions: the legal components, the range of each component, and the equality of rows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actorq.errors import InvalidInputError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Policies give forbidden actions a value far below all others: -1e8, -1e9, or the lowest float32.
HIGHEST_MASK = -1e7
# A value is a mask only if it is this many times lower than the lowest legal value of its row.
_MASK_GAP = 100.0
# Lower bound of a component's range, as a share of the widest component's range. Without this bound, noise would
# dominate a component that hardly moves (docs/decisions/0063-own-ranges.md).
LEAST_SHARE = 0.01


def legal_actions(expected: Array) -> Mask:
    """The legal components of each row, bool[B, M], from the FP32 policy's output. Each row has at least one.

    A masked component is at most `HIGHEST_MASK`, and far below the lowest other component of its row.
    """
    low: Mask = expected <= HIGHEST_MASK
    if not low.any():
        return ~low
    lowest = np.where(low, np.inf, expected).min(axis=1, keepdims=True)
    gap = _MASK_GAP * np.minimum(np.where(np.isinf(lowest), -np.inf, lowest), 0.0)
    legal: Mask = ~(low & (expected <= gap)) | np.isinf(lowest)
    return legal


def parts_of(expected: Array, choices: Sequence[int]) -> list[slice]:
    """The components of each discrete part of an action. choices: number of choices of each part; empty for a single
    part.

    Raises InvalidInputError when the parts are not the components of the output.
    """
    width = expected.shape[1]
    sizes = choices or (width,)
    if sum(sizes) != width:
        parts = f"{sum(sizes)} components of the first output for {len(sizes)} discrete parts"
        raise InvalidInputError(f"graph: expected {parts}, got {width}")
    stops = np.cumsum(sizes).tolist()
    return [slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def are_actions(expected: Array, discrete_actions: bool) -> bool:
    """Whether a float output is the action itself: its values are whole numbers that are not all equal.

    A single component of whole numbers is the index of a discrete action, even if it is constant.
    """
    whole = bool((expected == np.rint(expected)).all())
    return whole and ((discrete_actions and expected.shape[1] == 1) or bool(np.ptp(expected) > 0))


def observed_spans(expected: Array, legal: Mask, discrete_actions: bool) -> tuple[Array, Mask]:
    """The divisor of each component's errors, float64[M], and which components count in the mean, bool[M].

    The values of discrete actions share one unit, so their divisor is the range of all legal values. Other components
    are divided by their own range, but at least by `LEAST_SHARE` of the widest range. Constant components do not count
    in the mean. The divisor is 1 where nothing varies.
    """
    high = np.where(legal, expected, -np.inf).max(axis=0)
    low = np.where(legal, expected, np.inf).min(axis=0)
    all_count = np.ones(len(high), np.bool_)
    if discrete_actions:
        return np.full(len(high), float(high.max() - low.min()) or 1.0), all_count
    ranges = np.maximum(high - low, 0.0)
    widest = float(ranges.max())
    if not widest:
        return np.ones(len(ranges)), all_count
    return np.maximum(ranges, LEAST_SHARE * widest), ranges > 0


def value_loss(values: Array, legal: Mask, actions: NDArray[np.int64]) -> float:
    """The loss of value of `actions` against the best legal actions, relative to the worst; 0 if all are equally good.

    An illegal action counts as the worst one. To first order, the mean loss of value is the policy's loss of return per
    step (Kakade and Langford 2002, lemma 6.1).
    """
    worst = np.where(legal, values, np.inf).min(axis=1)
    best = values.max(axis=1)
    taken = np.maximum(np.take_along_axis(values, actions[:, None], axis=1)[:, 0], worst)
    most = float((best - worst).mean())
    return float((best - taken).mean()) / most if most else 0.0
