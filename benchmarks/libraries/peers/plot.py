"""The plot: return against seconds, with one panel for each task, all systems and all seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import COLORS, NEUTRAL, draw, legend, panels
from benchmarks.libraries.peers.systems import SYSTEMS
from benchmarks.libraries.peers.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = dict(zip(SYSTEMS, (*(COLORS[number] for number in (0, 2, 1, 8, 4, 3, 7, 9, 5)), NEUTRAL), strict=True))


def plot(runs: Mapping[Task, Sequence[dict[str, Any]]], file: Path, source: str = "") -> None:
    """Draw the evaluations of all runs until they reach the target, and the target as a dashed line."""
    by_name = {task.name: (task, own) for task, own in runs.items()}

    def paint(figure: "Figure") -> None:
        shown = panels(figure, by_name, columns=1)
        for name, axes in shown.items():
            task, own = by_name[name]
            for run in own:
                seconds = [point["seconds"] for point in run["evaluations"]]
                returns = [point["return"] for point in run["evaluations"]]
                color = _COLORS[run["system"]]
                axes.plot(seconds, returns, color=color, linewidth=1.2, marker=".", markersize=3.5)
            axes.axhline(task.target, color=NEUTRAL, linestyle="--", linewidth=1)
            axes.set_xscale("log")
        first = next(iter(shown.values()))
        for system, color in _COLORS.items():
            if any(run["system"] == system for own in runs.values() for run in own):
                first.plot([], [], color=color, label=system)
        legend(figure, first)
        figure.supxlabel("seconds since the start of the command")
        figure.supylabel("mean return of 20 episodes")

    draw(file, 0.9 + 2.4 * len(runs), paint, source)
