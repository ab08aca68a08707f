"""Ratios over seeds with bootstrap intervals, and learning curves with bands."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
FEW_SEEDS = 5
"""With fewer seeds a bootstrap interval is too narrow, because it resamples only the observed values."""
_RESAMPLES = 9_999
_GRID = 200


@dataclass(frozen=True)
class Ratio:
    """A geometric mean over seeds, and its bootstrap interval, which is None with one seed.

    seeds: number of seeds with both values, out of `runs`.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int
    runs: int


def ratio(numerators: Mapping[int, float | None], denominators: Mapping[int, float | None]) -> Ratio | None:
    """The geometric mean of the ratios of each seed; None if no seed has both values.

    Both values of a seed are resampled together, because their runs are neighbors in time. The interval is the
    percentile interval of `scipy.stats.bootstrap` at CONFIDENCE. Its seed is fixed, so that reports are reproducible.
    """
    logs = [
        math.log(above / below)
        for seed, above in sorted(numerators.items())
        if above and (below := denominators.get(seed))
    ]
    if not logs:
        return None
    low = high = None
    if len(logs) > 1:
        # Imported here, because all other functions work without it.
        from scipy import stats

        options: Any = {"n_resamples": _RESAMPLES, "confidence_level": CONFIDENCE, "method": "percentile"}
        found = stats.bootstrap((np.array(logs),), np.mean, rng=np.random.default_rng(0), **options)
        low, high = math.exp(found.confidence_interval.low), math.exp(found.confidence_interval.high)
    return Ratio(math.exp(sum(logs) / len(logs)), low, high, len(logs), len(numerators))


@dataclass(frozen=True)
class Band:
    """A curve over seeds: float64[points] each. `low` and `high` are the lowest and the highest value over seeds."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def band(curves: Sequence[Sequence[tuple[float, float]]]) -> Band | None:
    """Mean and range of curves of (x, y); None without points.

    The result begins where all curves have begun and ends with the longest. Between points, a curve is linear. After
    its end it keeps its last value, because a run that reached its target is over.
    """
    columns = [np.array(curve, np.float64).T for curve in curves if curve]
    if not columns:
        return None
    start, end = max(xs[0] for xs, _ in columns), max(xs[-1] for xs, _ in columns)
    x = np.linspace(start, max(start, end), _GRID)
    rows = np.array([np.interp(x, xs, ys) for xs, ys in columns])
    return Band(x, rows.mean(0), rows.min(0), rows.max(0))
