"""The plot of swap.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import COLORS, draw
from benchmarks.policy.swap_paths import STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Widths = Mapping[int, Mapping[str, Mapping[str, Any]]]
_LETTERS = "ABCDEF"


def plot(figures: _Widths, paths: Sequence[str], file: Path, source: str = "") -> None:
    """Draw the stages of these paths as stacked bars, for each width. The first path has a panel with its own scale.

    figures: for each width the result of benchmarks.policy.swap.summarize.
    """

    def paint(figure: "Figure") -> None:
        above, below = figure.subplots(2, 1, height_ratios=(1, 1.35))
        for axes, names in ((above, paths[:1]), (below, paths[1:])):
            _bars(axes, figures, names)
        above.set_title(f"{paths[0]}, and times faster than A", fontsize=9)
        below.set_title("\n".join(f"{_LETTERS[index]}: {name}" for index, name in enumerate(paths[1:])), fontsize=9)
        below.set_xlabel("width of three hidden layers")
        above.legend(frameon=False, loc="upper left", fontsize=9)

    draw(file, 6.0, paint, source)


def _bars(axes: "Axes", figures: _Widths, names: Sequence[str]) -> None:
    widths = list(figures)
    bar = 0.8 / len(names)
    for index, name in enumerate(names):
        centers = [position + (index - (len(names) - 1) / 2) * bar for position in range(len(widths))]
        bottoms = [0.0] * len(widths)
        for stage, color in zip(STAGES, COLORS, strict=False):
            heights = [figures[width][name]["stages_ms"].get(stage, 0.0) for width in widths]
            axes.bar(centers, heights, 0.9 * bar, bottoms, color=color, label="" if index else stage)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        for center, bottom, width in zip(centers, bottoms, widths, strict=True):
            ratio = figures[width][name]["ratio"]["median"]
            mark = _LETTERS[index] if len(names) > 1 else f"{ratio:.0f}x"
            axes.annotate(mark, (center, bottom), ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(widths)), [str(width) for width in widths])
    axes.set_ylabel("ms of CPU time")
    axes.margins(y=0.12)
