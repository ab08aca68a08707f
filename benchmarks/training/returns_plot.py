"""The plot of returns.py: return against environment steps, with a panel for each task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import COLORS, NEUTRAL, draw, panels, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(runs: Mapping[str, Sequence[dict[str, Any]]], file: Path, source: str = "") -> None:
    """Draw the evaluations of each task's runs, and the task's target as a dashed line."""

    def paint(figure: "Figure") -> None:
        for task, axes in panels(figure, runs).items():
            for run, color in zip(runs[task], COLORS, strict=False):
                steps = [point["environment_steps"] / 1e3 for point in run["evaluations"]]
                axes.plot(steps, [point["mean_return"] for point in run["evaluations"]], linewidth=1.2, color=color)
            axes.axhline(runs[task][0]["target_return"], color=NEUTRAL, linestyle="--", linewidth=1)
            axes.set_title("\n".join(task.replace("dm_control/", "").split("/", 1)), fontsize=9)
            axes.set_xlim(0, None)
            axes.locator_params(axis="x", nbins=4)
        figure.supxlabel("thousand environment steps")
        figure.supylabel("return of the actors' policy")

    draw(file, 0.4 + 1.8 * rows(runs), paint, source)
