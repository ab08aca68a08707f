"""The plot of cartpole.py: return against seconds, with a curve for each seed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import COLORS, NEUTRAL, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(runs: Sequence[dict[str, Any]], file: Path, source: str = "") -> None:
    """Draw the evaluations of each run, and the target as a dashed line."""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for run, color in zip(runs, COLORS, strict=False):
            seconds = [point["wall_clock_s"] for point in run["evaluations"]]
            returns = [point["mean_return"] for point in run["evaluations"]]
            axes.plot(
                seconds, returns, marker="o", markersize=3, linewidth=1.3, color=color, label=f"seed {run['seed']}"
            )
        axes.axhline(runs[0]["target_return"], color=NEUTRAL, linestyle="--", linewidth=1, label="target")
        axes.set(xlabel="seconds since the start of the processes", ylabel="return of the int8 policy")
        axes.set(title="CartPole-v1: mean of 20 greedy episodes", xlim=(0, None), ylim=(0, 510))
        axes.legend(frameon=False, loc=(0.03, 0.2))

    draw(file, 3.2, paint, source)
