"""The plot of scaling.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from benchmarks.drawing import COLORS, FONT_SIZE, NEUTRAL, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Series(Protocol):
    """The plotted values of one simulated run, every half second."""

    seconds: list[float]
    replicas: list[int]
    needed: list[float]
    starved: list[float]
    blocked: list[float]


def plot(traces: Mapping[int, Series], file: Path, source: str = "") -> None:
    """Draw replicas, needed replicas, starvation and blocking. Each run has a column."""

    def paint(figure: "Figure") -> None:
        grid = figure.subplots(2, len(traces), sharex=True, squeeze=False)
        for (above, below), (needed, trace) in zip(grid.T, traces.items(), strict=True):
            minutes = np.array(trace.seconds) / 60
            above.plot(minutes, trace.needed, color=NEUTRAL, linestyle="--", label="needed")
            above.plot(minutes, trace.replicas, color=COLORS[0], label="replicas")
            above.set_title(f"needs {needed:,}, then {needed / 2:,g}", fontsize=FONT_SIZE)
            above.set_ylim(bottom=0)
            waits = (("learner starved", trace.starved, COLORS[1]), ("actors blocked", trace.blocked, COLORS[2]))
            for name, values, color in waits:
                below.plot(minutes, _smooth(values), color=color, label=name)
            below.set_ylim(-0.03, 1.03)
            below.set_xlabel("minutes")
        grid[0][0].set_ylabel("actors")
        grid[1][0].set_ylabel("share of the time, 10 s mean")
        handles, labels = (
            [*ours, *theirs]
            for ours, theirs in zip(*(axes.get_legend_handles_labels() for axes in grid[:, 0]), strict=True)
        )
        figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=2)

    draw(file, 4.6, paint, source)


def _smooth(values: list[float], width: int = 20) -> np.ndarray:
    """Running mean; shorter at the beginning."""
    total = np.cumsum(values)
    counts = np.minimum(np.arange(1, len(values) + 1), width)
    total[width:] -= total[:-width].copy()
    return total / counts
