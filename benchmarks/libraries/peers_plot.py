"""The plot of peers.py: return against seconds, with one panel for each task, all systems and all seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.libraries.peers_systems import SYSTEMS, Task

_COLORS = ("tab:blue", "tab:orange", "0.5")


def plot(runs: Mapping[Task, Sequence[dict[str, Any]]], file: Path) -> None:
    """Draw the evaluations of all runs until they reach the target, and the target as a dashed line."""
    # Imported here, because only the plot needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(runs), figsize=(3.4 * len(runs), 2.9), dpi=110, layout="constrained", squeeze=False
    )
    for axes, (task, own) in zip(panels.flat, runs.items(), strict=True):
        for run in own:
            color = _COLORS[SYSTEMS.index(run["system"])]
            seconds = [point["seconds"] for point in run["evaluations"]]
            returns = [point["return"] for point in run["evaluations"]]
            axes.plot(seconds, returns, color=color, linewidth=1.1, marker=".", markersize=3)
        axes.axhline(task.target, color="0.7", linestyle="--", linewidth=1)
        axes.set_title(task.name, fontsize=9)
        axes.set_xscale("log")
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    shown = [system for system in SYSTEMS if any(run["system"] == system for own in runs.values() for run in own)]
    for system in shown:
        panels.flat[0].plot([], [], color=_COLORS[SYSTEMS.index(system)], label=system)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside upper center", ncols=len(labels))
    figure.supxlabel("seconds since the start of the command", fontsize=8)
    figure.supylabel("mean return of 20 greedy episodes", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)
