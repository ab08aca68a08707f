"""The plot of fidelity.py."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.policy.figures import Figures

_FLOOR = 1e-5


def plot(figures: Mapping[str, Mapping[str, Figures]], agreement: float, mean_error: float, file: Path) -> None:
    """Draw the share of actions that differ from FP32's, or the mean action error, for each policy and variant.

    agreement, mean_error: the targets, for discrete and for continuous actions.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawing, panels = pyplot.subplots(
        1, len(figures), figsize=(2.6 * len(figures) + 2, 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, (name, variants) in zip(panels[0], figures.items(), strict=True):
        names = list(variants)[::-1]
        batches = list(variants[names[0]].errors)
        discrete = variants[names[0]].errors[batches[0]].agreement is not None
        for index, batch in enumerate(batches):
            errors = [variants[variant].errors[batch] for variant in names]
            values = [error.mean_error if error.agreement is None else 1 - error.agreement for error in errors]
            rows = np.arange(len(names)) + (0.2 if index == 0 else -0.2)
            axes.barh(rows, np.maximum(values, _FLOOR), 0.38, color=f"C{index}", label=f"batch {batch}")
        for row, variant in enumerate(names):
            axes.annotate(
                f"{np.mean(variants[variant].returns):.0f}",
                (0.99, row),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="center",
                fontsize=7,
                color="0.35",
            )
        axes.axvline(1 - agreement if discrete else mean_error, color="0.6", linestyle="--", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(_FLOOR, 10)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xlabel("share of other actions" if discrete else "mean action error / range", fontsize=8)
        axes.set_title(f"{name}\nreturns at the right", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    drawing.legend(handles, labels, frameon=False, fontsize=8, ncols=len(labels), loc="outside lower left")
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, dpi=100)
    pyplot.close(drawing)
