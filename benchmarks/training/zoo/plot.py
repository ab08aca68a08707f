"""The plots of the zoo: return against seconds, with a panel for each setting and a line for each seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.drawing import COLORS, NEUTRAL, draw, panels, rows
from benchmarks.training.zoo.settings import Run, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(runs: Mapping[Setting, Sequence[Run]], file: Path, source: str = "") -> None:
    """Draw the evaluations of each setting's runs, and the return that ends a run as a dashed line."""
    titles = {setting.title: own for setting, own in runs.items()}

    def paint(figure: "Figure") -> None:
        for title, axes in panels(figure, titles).items():
            for run, color in zip(titles[title], COLORS, strict=False):
                seconds = [point["wall_clock_s"] for point in run["evaluations"]]
                returns = [point["mean_return"] for point in run["evaluations"]]
                # A run with one evaluation is a point.
                axes.plot(seconds, returns, linewidth=1.2, color=color, marker="." if len(seconds) == 1 else "")
            axes.axhline(titles[title][0]["target_return"], color=NEUTRAL, linestyle="--", linewidth=1)
            axes.set_title(title, fontsize=9)
            axes.set_xlim(0, None)
            axes.locator_params(axis="x", nbins=4)
        figure.supxlabel("seconds")
        figure.supylabel("return of the actors' policy")

    draw(file, 0.4 + 1.8 * rows(titles), paint, source)
