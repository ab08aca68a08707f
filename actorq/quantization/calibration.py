"""Statistics of a policy's tensors over its calibration batch, for schemes that depend on observations."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Up to this many products, OpenBLAS multiplies matrices on the calling thread. Beyond that, its threads compete with
# actors and learners for cores, and a multiplication is a hundred times slower.
SINGLE_THREADED_PRODUCTS = 2**18

# Lowest and highest values of a tensor.
Range = tuple[float, float]


class Statistic(Enum):
    """A statistic of a tensor x. MEAN and MOMENTS treat values that are not finite as 0. RANGE ignores them.

    RANGE: lowest and highest value, float64[2].
    MEAN: mean of each entry of the last axis over all other axes, float64[K].
    MOMENTS: mean of x x^T over all but the last axis, not centered, float64[K, K].
    """

    RANGE = "range"
    MEAN = "mean"
    MOMENTS = "moments"


class Observed(NamedTuple):
    """One statistic of one tensor of the graph."""

    tensor: str
    statistic: Statistic


Statistics = Mapping[Observed, NDArray[np.float64]]
# Observations of each data input by name, batch first.
Batch = Mapping[str, NDArray[Any]]


def rows_of(batch: Batch) -> int:
    """Number of rows of a calibration batch, the same for all its tensors."""
    return len(next(iter(batch.values())))


def evenly_spaced(batch: Batch, count: int) -> Batch:
    """Rows evenly spaced from the first to the last, because observations may be in order of time; at most all rows."""
    rows = rows_of(batch)
    if count >= rows:
        return batch
    chosen = np.linspace(0, rows - 1, count).round().astype(np.intp)
    return {name: array[chosen] for name, array in batch.items()}


def summarize(array: NDArray[Any], statistic: Statistic) -> NDArray[np.float64]:
    """A statistic of a tensor with at least one row."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _SUMMARIES[statistic](array)


def _range(array: NDArray[Any]) -> NDArray[np.float64]:
    # Before a tanh, a hidden value may overflow although the outputs are finite.
    finite = array if np.isfinite(array.sum()) else array[np.isfinite(array)]
    return np.array([finite.min(), finite.max()] if finite.size else [0.0, 0.0], np.float64)


def _mean(array: NDArray[Any]) -> NDArray[np.float64]:
    rows = _finite(array.reshape(-1, array.shape[-1]))
    return np.asarray(rows.mean(axis=0, dtype=np.float64))


def _moments(array: NDArray[Any]) -> NDArray[np.float64]:
    # The squares of float32 values do not overflow in float64.
    rows = _finite(array.reshape(-1, array.shape[-1])).astype(np.float64)
    inputs = rows.shape[1]
    columns = np.ascontiguousarray(rows.T)
    result = np.zeros((inputs, inputs))
    step = max(1, SINGLE_THREADED_PRODUCTS // max(1, inputs**2))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        result += columns[:, part] @ rows[part]
    return result / len(rows)


def _finite(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind != "f" or np.isfinite(array.sum()):
        return array
    return np.where(np.isfinite(array), array, array.dtype.type(0))


_SUMMARIES = {Statistic.RANGE: _range, Statistic.MEAN: _mean, Statistic.MOMENTS: _moments}
