"""The plot of actorq.py: speed of each kind of actor relative to PyTorch actors, in time to the target or in steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLOURS = {"fp32": "0.6", "int8": "tab:blue", "int4": "tab:green"}
_LABELS = {
    "time_to_target": "times faster to the target\nthan PyTorch FP32 actors",
    "throughput": "steps per second over\nPyTorch FP32 actors",
}
# The paper's best time to the target.
_BEST_PUBLISHED = 5.41


def plot(results: Sequence[dict[str, Any]], file: Path, measure: str = "time_to_target") -> None:
    """Draw a group of bars for each task: speed relative to torch, with intervals over several seeds.

    measure: "time_to_target" or "throughput". A bar is missing if no seed reached the target with both kinds of actors.
    """
    # Imported here, because only the plot needs it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(2.2 + 1.9 * len(results), 3.2), dpi=120, layout="constrained")
    width = 0.8 / len(_COLOURS)
    for offset, (scheme, colour) in enumerate(_COLOURS.items()):
        for place, result in enumerate(results):
            variant = next(variant for variant in result["variants"] if variant["scheme"] == scheme)
            ratio = next(each[measure] for each in variant["ratios"] if each["baseline"] == "torch")
            if ratio is None:
                continue
            x, value = place + (offset - (len(_COLOURS) - 1) / 2) * width, ratio["value"]
            reach = [[value - ratio["low"]], [ratio["high"] - value]] if ratio["low"] is not None else None
            label = scheme if place == 0 else None
            axes.bar(x, value, width * 0.92, color=colour, label=label, yerr=reach, capsize=2, error_kw={"lw": 0.9})
            axes.annotate(
                f"{value:.1f}", (x, ratio["high"] or value), (0, 2), textcoords="offset points", ha="center", fontsize=8
            )
    axes.axhline(1, color="0.3", linewidth=0.8)
    if measure == "time_to_target":
        best = f"the paper's best, {_BEST_PUBLISHED}"
        axes.axhline(_BEST_PUBLISHED, color="tab:red", linewidth=0.9, linestyle="--", label=best)
    names = [
        f"{result['environment'].removeprefix('dm_control/')}\n{result['algorithm']}, 3 x {result['width']}"
        for result in results
    ]
    axes.set_xticks(range(len(results)), names, fontsize=8)
    axes.set_ylabel(_LABELS[measure], fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.14)
    figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=len(_COLOURS) + 1)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)
