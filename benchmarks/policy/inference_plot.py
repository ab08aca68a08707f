"""The plot of inference.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actorq.domain.policy import FP32
from benchmarks.drawing import COLORS, FONT_SIZE, NEUTRAL, draw, panels, rows
from benchmarks.policy.figures import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(cells: Sequence[Cell], file: Path, source: str = "") -> None:
    """Draw all speeds relative to ONNX Runtime fp32, by width and batch size, and for the CNN."""
    batches = {f"batch {batch}": batch for batch in sorted({cell.batch for cell in cells})}
    names = [name for name in cells[0].timings if name != FP32]
    colors = dict(zip(names, COLORS, strict=False))
    titles = [*batches, "Nature CNN"]

    def paint(figure: "Figure") -> None:
        shown = panels(figure, titles)
        for title, batch in batches.items():
            _lines(shown[title], [cell for cell in cells if cell.batch == batch], colors)
        _frames(shown["Nature CNN"], [cell for cell in cells if cell.network == "cnn"], colors)
        for axes in shown.values():
            axes.axhline(1, color=NEUTRAL, linewidth=1)
            axes.yaxis.set_major_formatter("{x:g}x")
        handles, labels = shown["Nature CNN"].get_legend_handles_labels()
        note = "times faster than ONNX Runtime fp32\nfilled: ReLU MLP; hollow: D4PG policy"
        figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=3, title=note)

    draw(file, 1.1 + 2.1 * rows(titles), paint, source)


def _lines(axes: "Axes", own: Sequence[Cell], colors: Mapping[str, str]) -> None:
    for kind, style in (("mlp", "-o"), ("d4pg", "--D")):
        found = [cell for cell in own if cell.network.startswith(kind)]
        widths = [int(cell.network.split()[1]) for cell in found]
        ground = axes.get_facecolor() if kind == "d4pg" else None
        for name, color in colors.items():
            speeds = [cell.speedup(name) for cell in found]
            axes.plot(widths, speeds, style, color=color, markersize=3.5, linewidth=1.2, markerfacecolor=ground)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("width", fontsize=FONT_SIZE)
    axes.tick_params(axis="x", labelsize=8.5)


def _frames(axes: "Axes", frames: Sequence[Cell], colors: Mapping[str, str]) -> None:
    for index, (name, color) in enumerate(colors.items()):
        positions = [column + (index - (len(colors) - 1) / 2) * 0.14 for column in range(len(frames))]
        axes.bar(positions, [cell.speedup(name) for cell in frames], 0.13, color=color, label=name)
    axes.set_xticks(range(len(frames)), [str(cell.batch) for cell in frames])
    axes.set_xlabel("batch", fontsize=FONT_SIZE)
