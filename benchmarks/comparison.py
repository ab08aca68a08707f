"""Compares the returns of two kinds of runs over tasks and seeds, by the statistics of benchmarks/statistics.py."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.statistics import Estimate, Scores, estimate, improvement, interquartile_mean

Run = Mapping[str, Any]
# The returns of each task's runs.
Returns = Mapping[str, Sequence[float]]
# With fewer runs of a task, a bootstrap interval is much too narrow.
FEWEST_SEEDS = 5


@dataclass(frozen=True)
class Comparison:
    """Runs of one kind ("ours") compared with runs of another kind ("theirs") on the same tasks.

    tasks: number of tasks. runs: number of our runs. seeds: fewest runs of a task, of both kinds.
    share: the interquartile mean of our scores over that of their scores. `scores` defines a score.
    improvement: the probability that one of our runs returns more than one of theirs on the same task.
    """

    tasks: int
    runs: int
    seeds: int
    share: Estimate
    improvement: Estimate

    @property
    def refused(self) -> str:
        """The reason why the comparison gives no verdict; "" if it gives one."""
        return f"fewer than {FEWEST_SEEDS} seeds of a task" if self.seeds < FEWEST_SEEDS else ""


def compare(ours: Returns, theirs: Returns, floors: Mapping[str, float] | None = None) -> Comparison | None:
    """Compare two kinds of runs on the tasks with several runs of both kinds. None if there is no such task.

    floors: the return of each task that counts as zero, such as that of random actions; 0 for a missing task. A task
        is left out if the mean of their returns is not above its floor, because a share of it has no meaning.
    """
    floors = floors or {}
    tasks = sorted(
        task
        for task in ours.keys() & theirs.keys()
        if min(len(ours[task]), len(theirs[task])) > 1 and np.mean(theirs[task]) > floors.get(task, 0.0)
    )
    if not tasks:
        return None

    def share(first: Scores, second: Scores) -> NDArray[np.float64]:
        middle, unit = interquartile_mean(first), interquartile_mean(second)
        # A resample of theirs may have no run that learns. Then the share has no upper bound.
        return np.asarray(np.divide(middle, unit, out=np.full(middle.shape, np.inf), where=unit > 0))

    scored = [scores({task: each[task] for task in tasks}, theirs, floors) for each in (ours, theirs)]
    return Comparison(
        tasks=len(tasks),
        runs=sum(len(ours[task]) for task in tasks),
        seeds=min(len(each[task]) for each in (ours, theirs) for task in tasks),
        share=estimate(share, *scored),
        improvement=estimate(improvement, *scored),
    )


def scores(returns: Returns, units: Returns, floors: Mapping[str, float] | None = None) -> dict[str, list[float]]:
    """Returns that tasks can share: 0 at the floor of the task, 1 at the mean of its returns in `units`.

    floors: as in `compare`.
    """
    found = {}
    for task, values in returns.items():
        floor = (floors or {}).get(task, 0.0)
        unit = float(np.mean(units[task])) - floor
        found[task] = [(value - floor) / unit for value in values]
    return found


def confirmed_return(run: Run) -> float:
    """The return of a run's last policy on new episodes."""
    return float(run["confirmed"]["mean_return"])


def returns_by_task(
    runs: Iterable[Run], return_of: Callable[[Run], float] = confirmed_return
) -> dict[str, list[float]]:
    """The return of each run, by task."""
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run["task"], []).append(return_of(run))
    return found
