"""Figures of the runs: comparisons with SAC, returns over time, and medians."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.comparison import Comparison, compare, returns_by_task
from benchmarks.training.normalized.systems import SAC, SYSTEMS

Run = Mapping[str, Any]
# Parts of a run's time at which the pages show its return.
PARTS = (0.25, 0.5, 0.75, 1.0)


def cells(runs: Sequence[Run]) -> Iterator[tuple[str, str, list[Run]]]:
    """The runs of each task and each system that has runs of the task, in the order of SYSTEMS."""
    for task in dict.fromkeys(run["task"] for run in runs):
        for system in SYSTEMS:
            own = [run for run in runs if (run["task"], run["system"]) == (task, system.name)]
            if own:
                yield task, system.name, own


def compared(runs: Sequence[Run], random: Mapping[str, float], task: str, system: str) -> Comparison | None:
    """A system compared with SAC on a task, by returns of the last policy. None without two seeds of both.

    random: the mean return of random actions by task, which counts as zero.
    """
    ours, theirs = (
        returns_by_task(run for run in runs if (run["task"], run["system"]) == (task, name)) for name in (system, SAC)
    )
    return compare(ours, theirs, random)


def return_after(run: Run, part: float) -> float | None:
    """The return of the last evaluation within this part of a run's time; None before the first one."""
    seen = [each["mean_return"] for each in run["evaluations"] if each["wall_clock_s"] <= part * run["limit_s"]]
    return seen[-1] if seen else None


def median_error(runs: Sequence[Run], scheme: str, kind: str) -> float:
    """The median over runs of the mean or largest error. kind: "mean" or "max"."""
    return median(float(run["errors"][scheme][kind]) for run in runs)
