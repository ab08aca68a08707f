"""Statistics of returns over tasks and seeds (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", arXiv 2108.13264): interquartile mean, performance profile, probability of improvement, and
their stratified bootstrap intervals.

Scores are one array per task: float64[..., runs]. Leading axes are resamples. Normalize returns before tasks are
combined.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Scores = Sequence[NDArray[np.float64]]
_RESAMPLES = 9_999


@dataclass(frozen=True)
class Estimate:
    """A statistic and its bootstrap interval. For a performance profile, each is an array over the thresholds."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def interquartile_mean(scores: Scores) -> NDArray[np.float64]:
    """The mean of the middle half of all runs of all tasks (section 4.3): float64[...].

    `scipy.stats.trim_mean` drops the lowest and the highest quarter, rounded down to whole runs.
    """
    return np.asarray(stats.trim_mean(np.concatenate(scores, -1), 0.25, axis=-1), np.float64)


def improvement(scores: Scores, others: Scores) -> NDArray[np.float64]:
    """The probability that a run scores higher than another's run of the same task, averaged over tasks: float64[...].

    Equal scores count half, as in the statistic of Mann and Whitney (section 4.3).
    """
    per_task = []
    for ours, theirs in zip(scores, others, strict=True):
        difference = ours[..., :, None] - theirs[..., None, :]
        per_task.append(((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1)))
    return np.asarray(np.mean(per_task, 0))


def performance_profile(thresholds: ArrayLike) -> Callable[[Scores], NDArray[np.float64]]:
    """The share of all runs whose score exceeds each threshold (section 4.2): float64[..., thresholds]."""
    above = np.asarray(thresholds, np.float64)

    def profile(scores: Scores) -> NDArray[np.float64]:
        # One threshold at a time: an array of resamples x runs x thresholds may not fit into memory.
        runs = np.concatenate(scores, -1)
        return np.stack([(runs > threshold).mean(-1) for threshold in above], -1)

    return profile


def estimate(
    statistic: Callable[..., NDArray[np.float64]],
    *samples: Mapping[str, ArrayLike],
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """A statistic of one or more samples with its percentile interval by a stratified bootstrap (section 4.1).

    samples: scores of the runs by task. Each task of each sample is resampled on its own. All samples need the same
    tasks, in any order. The fixed seed makes reports reproducible.

    Raises ValueError for other tasks in another sample, and for a task without runs.
    """
    tasks = sorted(samples[0])
    for sample in samples:
        if sorted(sample) != tasks or not all(np.size(runs) for runs in sample.values()):
            raise ValueError(f"expected runs of {', '.join(tasks)} in each sample, got {sorted(sample)}")
    rng = np.random.default_rng(seed)
    given = [[np.asarray(sample[task], np.float64) for task in tasks] for sample in samples]
    drawn = [[runs[rng.integers(len(runs), size=(_RESAMPLES, len(runs)))] for runs in sample] for sample in given]
    low, high = np.quantile(statistic(*drawn), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return Estimate(statistic(*given), low, high)
