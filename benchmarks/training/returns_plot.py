"""The plot of returns.py: return against environment steps, with a panel for each task."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Protocol

_COLUMNS = 4


class Task(Protocol):
    """The properties of a task that the plot needs."""

    @property
    def name(self) -> str:
        """The panel's title."""

    @property
    def target(self) -> float:
        """The height of the dashed line."""


def plot(runs: Mapping[Any, Sequence[dict[str, Any]]], file: Path) -> None:
    """Draw the evaluations of each task's runs."""
    # Imported here, because only the plot needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(_COLUMNS, len(runs))
    rows = ceil(len(runs) / columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(3.1 * columns, 2.3 * rows), dpi=110, layout="constrained", squeeze=False
    )
    for axes in panels.flat:
        axes.set_visible(False)
    for axes, (task, seeds) in zip(panels.flat, runs.items(), strict=False):
        axes.set_visible(True)
        for run in seeds:
            steps = [point["environment_steps"] / 1e3 for point in run["evaluations"]]
            axes.plot(steps, [point["mean_return"] for point in run["evaluations"]], linewidth=1.2)
        axes.axhline(task.target, color="0.6", linestyle="--", linewidth=1)
        axes.set_title(task.name.replace("dm_control/", ""), fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_xlim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("thousand environment steps", fontsize=8)
    figure.supylabel("return of the actors' policy", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)
