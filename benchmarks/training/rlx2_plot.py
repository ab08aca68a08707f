"""The plot of rlx2.py: return against environment steps, with a panel for each task and a color for each method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.training.rlx2_tasks import METHODS, Task

_POINTS = 60


def plot(runs: Mapping[Task, Sequence[dict[str, Any]]], file: Path) -> None:
    """Draw the mean and the range over each method's seeds."""
    # Imported here, because only the plot needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = dict(zip(METHODS, pyplot.get_cmap("tab10").colors, strict=False))  # type: ignore[attr-defined]
    figure, panels = pyplot.subplots(
        1, len(runs), figsize=(4.2 * len(runs), 3.2), dpi=110, layout="constrained", squeeze=False
    )
    for axes, (task, own) in zip(panels.flat, runs.items(), strict=True):
        steps = np.linspace(0, task.steps, _POINTS)
        for method in dict.fromkeys(run["method"] for run in own):
            seeds = np.stack([_curve(run, steps) for run in own if run["method"] == method])
            axes.plot(steps / 1e3, seeds.mean(0), linewidth=1.4, color=colours[method], label=method)
            axes.fill_between(steps / 1e3, seeds.min(0), seeds.max(0), alpha=0.12, color=colours[method], linewidth=0)
        zeros = f"{100 * task.sparsity.actor:g}/{100 * task.sparsity.critic:g}%"
        axes.set_title(f"{task.name}, sparsity {zeros}", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("thousand environment steps", fontsize=8)
    figure.supylabel("return of the actors' policy", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)


def _curve(run: dict[str, Any], steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The run's returns at these steps, interpolated linearly between evaluations."""
    points = run["evaluations"]
    curve: NDArray[np.float64] = np.interp(
        steps, [point["environment_steps"] for point in points], [point["mean_return"] for point in points]
    )
    return curve
