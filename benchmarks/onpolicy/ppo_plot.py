"""The plot of ppo.py: final returns and steps per second of both libraries, with one panel for each task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLUMNS = 3
_COLORS = {"actorq": "tab:blue", "stable-baselines3": "0.5"}


def plot(runs: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the return of each seed against the steps per second of its run."""
    # Imported here, because only the plot needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(run["task"] for run in runs))
    rows, columns = -(-len(tasks) // _COLUMNS), min(_COLUMNS, len(tasks))
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(2.9 * columns, 2.4 * rows), dpi=110, layout="constrained", squeeze=False
    )
    for axes in panels.flat[len(tasks) :]:
        axes.set_visible(False)
    for axes, task in zip(panels.flat, tasks, strict=False):
        for side, color in _COLORS.items():
            own = [run for run in runs if (run["task"], run["side"]) == (task, side)]
            rates = [run["environment_steps"] / run["seconds"] for run in own]
            returns = [run["final"]["mean_return"] for run in own]
            axes.plot(rates, returns, "o", color=color, markersize=5, alpha=0.85, label=side)
        axes.set_title(task, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_xlim(0, None)
        axes.locator_params(axis="x", nbins=5)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside upper center", ncols=len(labels))
    figure.supxlabel("environment steps per second", fontsize=8)
    figure.supylabel("return of the last policy, 20 new episodes", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)
