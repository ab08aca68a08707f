"""The plot of fidelity.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.drawing import COLORS, FONT_SIZE, NEUTRAL, draw, legend
from benchmarks.policy.figures import Figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FLOOR = 1e-5
# In inches: of a bar with its name, and of a panel's title and axis.
_ROW, _FRAME = 0.24, 0.95


def plot(
    figures: Mapping[str, Mapping[str, Figures]], agreement: float, mean_error: float, file: Path, source: str = ""
) -> None:
    """Draw the share of actions that differ from FP32's, or the mean action error, for each policy and variant.

    agreement, mean_error: the targets, for discrete and for continuous actions.
    """
    heights = [_FRAME + _ROW * len(variants) for variants in figures.values()]

    def paint(figure: "Figure") -> None:
        grid = figure.subplots(len(figures), 1, squeeze=False, height_ratios=heights)
        for axes, (name, variants) in zip(grid.flat, figures.items(), strict=True):
            discrete = next(iter(next(iter(variants.values())).errors.values())).agreement is not None
            _bars(axes, variants)
            axes.axvline(1 - agreement if discrete else mean_error, color=NEUTRAL, linestyle="--", linewidth=1)
            error = "share of other actions" if discrete else "mean action error / range"
            axes.set_title(name, fontsize=FONT_SIZE)
            axes.set_xlabel(f"{error}; at the right: return")
        legend(figure, grid[0, 0])

    draw(file, 0.4 + sum(heights), paint, source)


def _bars(axes: "Axes", variants: Mapping[str, Figures]) -> None:
    names = list(variants)[::-1]
    for index, batch in enumerate(variants[names[0]].errors):
        errors = [variants[variant].errors[batch] for variant in names]
        values = [error.mean_error if error.agreement is None else 1 - error.agreement for error in errors]
        rows = np.arange(len(names)) + (0.2 if index == 0 else -0.2)
        axes.barh(rows, np.maximum(values, _FLOOR), 0.38, color=COLORS[index], label=f"batch {batch}")
    for row, variant in enumerate(names):
        text, place = f"{np.mean(variants[variant].returns):.0f}", ("axes fraction", "data")
        axes.annotate(text, (0.99, row), xycoords=place, ha="right", va="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(_FLOOR, 10)
    axes.set_yticks(range(len(names)), names)
