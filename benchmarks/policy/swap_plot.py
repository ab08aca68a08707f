"""The plot of swap.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.policy.swap_paths import STAGES


def plot(figures: Mapping[int, Mapping[str, Mapping[str, Any]]], paths: Sequence[str], file: Path) -> None:
    """Draw the stages of these paths as stacked bars, for each width. The first path has a panel with its own scale.

    figures: for each width the result of benchmarks.policy.swap.summarize.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    widths = list(figures)
    drawing, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.9), layout="constrained", width_ratios=(1, 1.7))
    colors = {stage: f"C{index}" for index, stage in enumerate(STAGES)}
    for axes, names in ((left, paths[:1]), (right, paths[1:])):
        bar = 0.8 / len(names)
        for index, name in enumerate(names):
            centers = [position + (index - (len(names) - 1) / 2) * bar for position in range(len(widths))]
            bottoms = [0.0] * len(widths)
            for stage in STAGES:
                heights = [figures[width][name]["stages_ms"].get(stage, 0.0) for width in widths]
                axes.bar(centers, heights, 0.9 * bar, bottoms, color=colors[stage], label="" if index else stage)
                bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
            for center, bottom, width in zip(centers, bottoms, widths, strict=True):
                ratio = figures[width][name]["ratio"]["median"]
                mark = "ABCDEF"[index] if len(names) > 1 else f"{ratio:.0f}x"
                axes.annotate(mark, (center, bottom), ha="center", va="bottom", fontsize=7)
        axes.set_xticks(range(len(widths)), [str(width) for width in widths])
        axes.set_xlabel("width of three hidden layers")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.1)
    left.set_ylabel("ms of CPU time")
    left.set_title(f"{paths[0]}, and times faster than A", fontsize=9)
    right.set_title("\n".join(f"{'ABCDEF'[index]}: {name}" for index, name in enumerate(paths[1:])), fontsize=8)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    file.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(file, dpi=110)
    pyplot.close(drawing)
