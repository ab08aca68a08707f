"""The plot of fanout.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.drawing import COLORS, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(milliseconds: Mapping[str, list[float]], subscribers: int, file: Path, source: str = "") -> None:
    """Draw the times of each way: a dot for each send, and a bar for the median."""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, (times, color) in enumerate(zip(milliseconds.values(), COLORS, strict=False)):
            axes.barh(place, sorted(times)[len(times) // 2], color=color, alpha=0.4)
            axes.plot(times, [place] * len(times), ".", color=color)
        axes.set_yticks(range(len(milliseconds)), [name.replace("_", " ") for name in milliseconds])
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel(f"ms until the last of {subscribers} subscribers has the policy\n(bars: medians)")

    draw(file, 3.2, paint, source)
