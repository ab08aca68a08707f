"""The plot of scaling.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np


class Series(Protocol):
    """The plotted values of one simulated run, every half second."""

    seconds: list[float]
    replicas: list[int]
    needed: list[float]
    starved: list[float]
    blocked: list[float]


def plot(traces: Mapping[int, Series], path: Path) -> None:
    """Draw replicas, needed replicas, starvation and blocking. Each run has a column."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(
        2, len(traces), figsize=(3.4 * len(traces), 5), sharex=True, squeeze=False, layout="constrained"
    )
    for column, (needed, trace) in enumerate(traces.items()):
        minutes = np.array(trace.seconds) / 60
        above, below = rows[0][column], rows[1][column]
        above.plot(minutes, trace.needed, color="0.6", linestyle="--", label="needed")
        above.plot(minutes, trace.replicas, label="replicas")
        above.set_title(f"a learner that needs {needed:,}, then {needed / 2:,g}", fontsize=9)
        above.set_ylim(bottom=0)
        for name, values, color in (("learner starved", trace.starved, "C3"), ("actors blocked", trace.blocked, "C2")):
            below.plot(minutes, _smooth(values), color=color, label=name)
        below.set_ylim(-0.03, 1.03)
        below.set_xlabel("minutes")
    rows[0][0].set_ylabel("actors")
    rows[1][0].set_ylabel("fraction of the time, 10 s mean")
    for row in rows:
        row[-1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _smooth(values: list[float], width: int = 20) -> np.ndarray:
    """Running mean; shorter at the beginning."""
    total = np.cumsum(values)
    counts = np.minimum(np.arange(1, len(values) + 1), width)
    total[width:] -= total[:-width].copy()
    return total / counts
