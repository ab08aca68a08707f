"""The plot of performance profiles (Agarwal et al. 2021): the share of runs above each score, by kind of run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.drawing import COLORS, NEUTRAL, draw, legend
from benchmarks.statistics import estimate, performance_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 60
# In inches.
_HEIGHT = 3.4


def plot(
    scores: Mapping[str, Mapping[str, Sequence[float]]],
    meaning: str,
    highest: float,
    file: Path,
    source: str = "",
    colors: Mapping[str, str] | None = None,
) -> None:
    """Draw a curve for each kind of run, with its bootstrap interval, and a line at the score 1.

    scores: by kind of run and task. meaning: the definition of a score. highest: the highest shown score. colors: by
    kind of run.
    """
    colors = colors or dict(zip(scores, COLORS, strict=False))
    thresholds = np.linspace(0, highest, _POINTS)
    profiles = {kind: estimate(performance_profile(thresholds), found) for kind, found in scores.items()}

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for kind, found in profiles.items():
            axes.step(thresholds, found.value, where="post", linewidth=1.5, color=colors[kind], label=kind)
            axes.fill_between(
                thresholds, found.low, found.high, step="post", alpha=0.13, color=colors[kind], linewidth=0
            )
        axes.axvline(1, color=NEUTRAL, linestyle="--", linewidth=1)
        axes.set_xlim(0, highest)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel(f"score: {meaning}")
        axes.set_ylabel("share of runs above the score")
        legend(figure, axes)

    draw(file, _HEIGHT, paint, source)
