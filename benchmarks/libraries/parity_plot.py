"""The plot of parity.py: return against environment steps, with one panel for each task and both libraries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import COLORS, NEUTRAL, draw, legend, panels, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = (COLORS[0], NEUTRAL, COLORS[1])


def plot(runs: Mapping[str, Mapping[str, Sequence[dict[str, Any]]]], file: Path, source: str = "") -> None:
    """Draw the evaluations by task and library: thin lines for the seeds, a point for the mean of the final returns."""

    def paint(figure: "Figure") -> None:
        shown = panels(figure, runs)
        for task, axes in shown.items():
            for color, (side, seeds) in zip(_COLORS, runs[task].items(), strict=False):
                for index, run in enumerate(seeds):
                    steps = [point["environment_steps"] / 1e3 for point in run["evaluations"]]
                    returns = [point["mean_return"] for point in run["evaluations"]]
                    label = None if index else side
                    axes.plot(steps, returns, color=color, linewidth=1.1, alpha=0.85, label=label)
                    end = run["environment_steps"] / 1e3
                    axes.plot(end, run["final"]["mean_return"], "o", color=color, markersize=4)
            axes.set_xlim(0, None)
        legend(figure, next(iter(shown.values())))
        figure.supxlabel("thousand environment steps\n(points: the last policy on new episodes)")
        figure.supylabel("return")

    draw(file, 0.9 + 2.1 * rows(runs), paint, source)
