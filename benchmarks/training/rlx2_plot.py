"""The plots of rlx2.py: return against environment steps, with a panel for each task, and performance profiles over
tasks. Each method has a color.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison import returns_by_task, scores
from benchmarks.drawing import COLORS, draw, legend, panels
from benchmarks.profile_plot import plot as plot_profiles
from benchmarks.training.rlx2_tasks import METHODS, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 60
# The method whose mean return is 1 in the performance profiles, and the highest score there.
_UNIT, _HIGHEST_SCORE = "control", 1.5
_COLORS = dict(zip(METHODS, COLORS[: len(METHODS)], strict=True))


def plot(runs: Mapping[Task, Sequence[dict[str, Any]]], file: Path, source: str = "") -> None:
    """Draw the mean and the range over each method's seeds, one task below the other."""
    titles = {_title(task): (task, own) for task, own in runs.items()}

    def paint(figure: "Figure") -> None:
        shown = panels(figure, titles, columns=1)
        used = {run["method"] for own in runs.values() for run in own}
        for title, axes in shown.items():
            task, own = titles[title]
            steps = np.linspace(0, task.steps, _POINTS)
            for method in dict.fromkeys(run["method"] for run in own):
                seeds = np.stack([_curve(run, steps) for run in own if run["method"] == method])
                axes.plot(steps / 1e3, seeds.mean(0), linewidth=1.5, color=_COLORS[method])
                axes.fill_between(
                    steps / 1e3, seeds.min(0), seeds.max(0), alpha=0.13, color=_COLORS[method], linewidth=0
                )
            axes.set_xlim(0, None)
        first = next(iter(shown.values()))
        for method in METHODS:
            if method in used:
                first.plot([], [], color=_COLORS[method], label=method)
        legend(figure, first, columns=4)
        figure.supxlabel("thousand environment steps")
        figure.supylabel("return of the actors' policy")

    draw(file, 0.9 + 2.3 * len(runs), paint, source)


def plot_profile(runs: Sequence[dict[str, Any]], file: Path, source: str = "") -> None:
    """Draw each method's share of runs above a score, with its bootstrap interval.

    A score is the return on new episodes, divided by the control's mean return on the task. Only tasks count that have
    all methods of `runs`.
    """
    returns = {
        method: returns_by_task(run for run in runs if run["method"] == method)
        for method in METHODS
        if any(run["method"] == method for run in runs)
    }
    tasks = set.intersection(*(set(found) for found in returns.values()))
    found = {method: scores({task: own[task] for task in tasks}, returns[_UNIT]) for method, own in returns.items()}
    plot_profiles(found, "return over the control's mean return", _HIGHEST_SCORE, file, source, _COLORS)


def _title(task: Task) -> str:
    zeros = f"{100 * task.sparsity.actor:g}% and {100 * task.sparsity.critic:g}%"
    return f"{task.name}, {zeros} zeros"


def _curve(run: dict[str, Any], steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The run's returns at these steps, interpolated linearly between evaluations."""
    points = run["evaluations"]
    curve: NDArray[np.float64] = np.interp(
        steps, [point["environment_steps"] for point in points], [point["mean_return"] for point in points]
    )
    return curve
