"""The plot of ppo.py: final returns and steps per second of both libraries, with one panel for each task."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import COLORS, NEUTRAL, draw, legend, panels, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {"actorq": COLORS[0], "stable-baselines3": NEUTRAL}


def plot(runs: Sequence[dict[str, Any]], file: Path, source: str = "") -> None:
    """Draw the return of each seed against the steps per second of its run."""
    tasks = list(dict.fromkeys(run["task"] for run in runs))

    def paint(figure: "Figure") -> None:
        shown = panels(figure, tasks)
        for task, axes in shown.items():
            for side, color in _COLORS.items():
                own = [run for run in runs if (run["task"], run["side"]) == (task, side)]
                rates = [run["environment_steps"] / run["seconds"] for run in own]
                returns = [run["final"]["mean_return"] for run in own]
                axes.plot(rates, returns, "o", color=color, markersize=5, alpha=0.85, label=side)
            axes.set_xlim(0, None)
            axes.locator_params(axis="x", nbins=3)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        legend(figure, next(iter(shown.values())))
        figure.supxlabel("environment steps per second")
        figure.supylabel("return of the last policy, 20 new episodes")

    draw(file, 0.8 + 1.8 * rows(tasks), paint, source)
