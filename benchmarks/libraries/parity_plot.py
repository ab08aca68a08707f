"""The plot of parity.py: return against environment steps, with one panel for each task and both libraries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_COLOURS = ("tab:blue", "0.5", "tab:orange")


def plot(runs: Mapping[str, Mapping[str, Sequence[dict[str, Any]]]], file: Path) -> None:
    """Draw the evaluations by task and library: thin lines for the seeds, a point for the mean of the final returns."""
    # Imported here, because only the plot needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(runs), figsize=(3.4 * len(runs), 2.9), dpi=110, layout="constrained", squeeze=False
    )
    for axes, (task, sides) in zip(panels.flat, runs.items(), strict=True):
        for colour, (side, seeds) in zip(_COLOURS, sides.items(), strict=False):
            for index, run in enumerate(seeds):
                steps = [point["environment_steps"] / 1e3 for point in run["evaluations"]]
                returns = [point["mean_return"] for point in run["evaluations"]]
                label = None if index else side
                axes.plot(steps, returns, color=colour, linewidth=1.1, alpha=0.85, label=label)
                axes.plot(run["environment_steps"] / 1e3, run["final"]["mean_return"], "o", color=colour, markersize=4)
        axes.set_title(task, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.set_xlim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside upper center", ncols=len(labels))
    figure.supxlabel("thousand environment steps (points: the last policy on new episodes)", fontsize=8)
    figure.supylabel("return", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)
