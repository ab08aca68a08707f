"""The plot of sparse_policy.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actorq.domain.policy import FP32
from benchmarks.drawing import COLORS, NEUTRAL, draw
from benchmarks.policy.figures import Bytes, Calls

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"random": NEUTRAL, "trained": COLORS[0], "structured": COLORS[1]}


def plot(
    found: Sequence[Bytes], calls: Sequence[Calls], bounds: Mapping[str, float], file: Path, source: str = ""
) -> None:
    """Draw the gains over dense fp32: bytes of an update, and time of a call.

    bounds: the target of each task for bytes.
    """

    def paint(figure: "Figure") -> None:
        sizes, *others = figure.subplots(3, 1)
        _sizes(sizes, found, bounds)
        for axes, batch in zip(others, sorted({each.batch for each in calls}), strict=True):
            _calls(axes, [each for each in calls if each.batch == batch])
            axes.set_title(f"calls, batch {batch}: times faster", fontsize=9.6)
        _legend(others[0], columns=2)

    draw(file, 8.2, paint, source)


def _legend(axes: "Axes", columns: int) -> None:
    """A legend above the bars."""
    axes.set_ylim(top=axes.get_ylim()[1] * (1.2 if columns > 2 else 1.5))
    axes.legend(frameon=False, fontsize=8.5, ncols=columns, loc="upper left", columnspacing=1)


def _sizes(axes: "Axes", found: Sequence[Bytes], bounds: Mapping[str, float]) -> None:
    tasks = list(dict.fromkeys(each.task for each in found))
    for offset, (masks, color) in enumerate(_COLORS.items()):
        own = [each for each in found if each.masks == masks]
        places = [tasks.index(each.task) + (offset - 1) * 0.27 for each in own]
        axes.bar(places, [each.saved() for each in own], 0.25, color=color, label=f"{masks} masks")
    for index, task in enumerate(tasks):
        ink = axes.xaxis.label.get_color()
        axes.plot([index - 0.42, index + 0.42], [bounds[task]] * 2, color=ink, linewidth=1.2)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_title("bytes of an update: times fewer (int8-weights)", fontsize=9.6)
    _legend(axes, columns=3)


def _calls(axes: "Axes", own: Sequence[Calls]) -> None:
    dense = next(each for each in own if each.masks == "dense").timings[FP32].median
    schemes = list(own[0].timings)
    for index, (scheme, color) in enumerate(zip(schemes, COLORS, strict=False)):
        places = [place + (index - (len(schemes) - 1) / 2) * 0.13 for place in range(len(own))]
        axes.bar(places, [dense / each.timings[scheme].median for each in own], 0.12, color=color, label=scheme)
    names = [each.masks if each.masks == "dense" else f"{each.masks}\n{each.sparsity:.0%}" for each in own]
    axes.set_xticks(range(len(own)), [name.replace("structured", "struct.") for name in names], fontsize=8)
    axes.axhline(1, color=NEUTRAL, linewidth=1)
