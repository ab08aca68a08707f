"""The plot of actorq.py: speed of each kind of actor relative to PyTorch actors, in time to the target or in steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import COLORS, FONT_SIZE, NEUTRAL, draw, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = {"fp32": NEUTRAL, "int8": COLORS[0], "int4": COLORS[2]}
_LABELS = {
    "time_to_target": "times faster to the target than PyTorch FP32 actors",
    "throughput": "steps/s over those of PyTorch FP32 actors",
}
# The paper's best time to the target.
_BEST_PUBLISHED = 5.41
# Of a task, in inches.
_HEIGHT = 1.0


def plot(results: Sequence[dict[str, Any]], file: Path, measure: str = "time_to_target", source: str = "") -> None:
    """Draw a group of bars for each task: speed relative to torch, with intervals over several seeds.

    measure: "time_to_target" or "throughput". A bar is missing if no seed reached the target with both kinds of actors.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        height = 0.8 / len(_COLORS)
        for offset, (scheme, color) in enumerate(_COLORS.items()):
            for place, result in enumerate(results):
                variant = next(variant for variant in result["variants"] if variant["scheme"] == scheme)
                ratio = next(each[measure] for each in variant["ratios"] if each["baseline"] == "torch")
                if ratio is None:
                    continue
                y, value = place + (offset - (len(_COLORS) - 1) / 2) * height, ratio["value"]
                reach = [[value - ratio["low"]], [ratio["high"] - value]] if ratio["low"] is not None else None
                ink, label = axes.xaxis.label.get_color(), scheme if place == 0 else None
                style = {"lw": 1, "ecolor": ink, "capsize": 2}
                axes.barh(y, value, height * 0.92, color=color, label=label, xerr=reach, error_kw=style)
                end = (ratio["high"] or value, y)
                axes.annotate(f"{value:.1f}", end, (4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.axvline(1, color=NEUTRAL, linewidth=0.9)
        if measure == "time_to_target":
            best = f"paper's best: {_BEST_PUBLISHED}"
            axes.axvline(_BEST_PUBLISHED, color=COLORS[1], linewidth=1, linestyle="--", label=best)
        axes.set_yticks(range(len(results)), [_name(result) for result in results], fontsize=FONT_SIZE)
        axes.invert_yaxis()
        axes.set_xlabel(_LABELS[measure])
        axes.margins(x=0.12)
        legend(figure, axes, columns=4)

    draw(file, 0.9 + _HEIGHT * len(results), paint, source)


def _name(result: dict[str, Any]) -> str:
    environment = result["environment"].removeprefix("dm_control/").replace("cartpole-", "cartpole-\n")
    return f"{environment}\n{result['algorithm']}, 3 x {result['width']}"
