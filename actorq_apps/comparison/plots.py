"""Draws the charts of a comparison, each in a light and a dark version."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from actorq_apps.comparison.figures import Point
from actorq_apps.comparison.intervals import band
from actorq_apps.comparison.result import Comparison, Value, seconds_to_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THEMES = {"light": ("#ffffff", "#333333"), "dark": ("#16191d", "#d5d8dc")}
# Okabe and Ito's colors, which color-blind people can distinguish. A scheme has the same color in every chart.
_COLORS = {
    "torch": "#999999",
    "fp32": "#0072b2",
    "int8": "#d55e00",
    "int8-weights": "#e69f00",
    "int8-static": "#56b4e9",
    "int4": "#009e73",
    "auto": "#cc79a7",
}
# This many labels of millions fit on the narrowest axis.
_TICKS = 4
# Colors for schemes of installed packages.
_MORE_COLORS = ("#f0e442", "#8c564b", "#000000")


def draw(comparison: Comparison, folder: Path) -> dict[str, dict[str, Path]]:
    """Write all charts as PNG files. Returns them by name and theme."""
    pictures: dict[str, Callable[[Any], None]] = {
        "return-seconds": lambda figure: _curves(comparison, figure, lambda p: p.seconds, "seconds of learning"),
        "return-steps": lambda figure: _curves(comparison, figure, lambda p: float(p.steps), "environment steps"),
        "success-steps": lambda figure: _curves(
            comparison, figure, lambda p: float(p.steps), "environment steps", lambda p: p.success_rate
        ),
        "throughput": lambda figure: _bars(comparison, figure, lambda r: r.steps_per_s, "environment steps per second"),
        "time-to-target": lambda figure: _bars(comparison, figure, seconds_to_target, "seconds to the target"),
    }
    if comparison.target is None:
        del pictures["time-to-target"]
    points = (point for side in comparison.sides for run in side.runs for point in run.curve)
    if all(point.success_rate is None for point in points):
        del pictures["success-steps"]
    return {name: {theme: _drawn(folder, name, theme, paint) for theme in THEMES} for name, paint in pictures.items()}


def _drawn(folder: Path, name: str, theme: str, paint: Callable[[Any], None]) -> Path:
    file = folder / (f"{name}.png" if theme == "light" else f"{name}-{theme}.png")
    with picture(file, theme, dpi=150) as figure:
        paint(figure)
    return file


@contextmanager
def picture(file: Path, theme: str, dpi: int, font_size: float = 9, source: str = "") -> "Iterator[Figure]":
    """An empty figure with the colors of a theme in THEMES, written to a PNG file at the end.

    font_size: in points. source: text that the file keeps as its source.
    """
    # Imported here, because all other functions work without it.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ground, ink = THEMES[theme]
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    grounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    values: dict[str, Any] = {**dict.fromkeys(inks, ink), **dict.fromkeys(grounds, ground), "font.size": font_size}
    values |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(cast(Any, values)):
        figure = pyplot.figure(dpi=dpi, layout="constrained")
        yield figure
        figure.savefig(file, metadata={"Source": source} if source else None)
        pyplot.close(figure)


def panels(figure: "Figure", names: Collection[str], width: float, height: float) -> "list[tuple[Axes, str]]":
    """A panel for each name, at most three per row. width, height: size of a panel in inches."""
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure.set_size_inches(width * columns, height * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for spare in axes.flat[len(names) :]:
        spare.set_visible(False)
    return list(zip(axes.flat, names, strict=False))


def _curves(
    comparison: Comparison,
    figure: "Figure",
    x_of: Callable[[Point], float],
    label: str,
    success_of: Callable[[Point], float | None] | None = None,
) -> None:
    """Curves of returns, or of success rates if `success_of` provides them."""
    y_of = success_of or (lambda point: point.mean_return)
    colors, width = _colors(comparison), 7.0 if len(comparison.cells) == 1 else 4.4
    shown = panels(figure, comparison.cells, width, 3.6)
    for axes, cell in shown:
        for side in comparison.cell(cell):
            points = [[(x_of(point), y_of(point)) for point in run.curve] for run in side.runs]
            known = [[(x, y) for x, y in curve if y is not None] for curve in points]
            curves = [curve for curve in known if curve]
            if (found := band(curves)) is None:
                continue
            color = colors[side.variant.scheme]
            axes.fill_between(found.x, found.low, found.high, color=color, alpha=0.18, linewidth=0)
            axes.plot(found.x, found.mean, color=color, linewidth=1.8, label=side.variant.scheme)
            axes.plot(*zip(*(curve[-1] for curve in curves), strict=True), "o", color=color, markersize=4)
        if comparison.target is not None and success_of is None:
            axes.axhline(comparison.target, color=axes.xaxis.label.get_color(), linewidth=0.8, linestyle=(0, (4, 3)))
        _label(axes, cell, label)
    shown[0][0].set_ylabel("evaluated return" if success_of is None else "success rate")
    handles, labels = shown[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=len(labels))


def _colors(comparison: Comparison) -> dict[str, str]:
    others = sorted({side.variant.scheme for side in comparison.sides} - _COLORS.keys())
    return _COLORS | dict(zip(others, cycle(_MORE_COLORS), strict=False))


def _bars(comparison: Comparison, figure: "Figure", value: Value, label: str) -> None:
    most = max(len(comparison.cell(cell)) for cell in comparison.cells)
    colors, width = _colors(comparison), 7.0 if len(comparison.cells) == 1 else 4.4
    for axes, cell in panels(figure, comparison.cells, width, 1.1 + 0.42 * most):
        sides = comparison.cell(cell)
        for place, side in enumerate(sides):
            color, values = colors[side.variant.scheme], side.values(value)
            if not values:
                axes.text(0, place, " not reached", va="center", fontsize=8)
                continue
            mean = sum(values) / len(values)
            axes.barh(place, mean, height=0.62, color=color, alpha=0.75)
            axes.plot(values, [place] * len(values), "o", color=axes.xaxis.label.get_color(), markersize=3)
            axes.annotate(f"{mean:,.3g}" if mean < 1000 else f"{mean:,.0f}", (max(values), place), (6, 0), va="center",
                          textcoords="offset points", fontsize=8)  # fmt: skip
        axes.set_yticks(range(len(sides)), [side.variant.scheme for side in sides])
        axes.set_ylim(len(sides) - 0.5, -0.5)
        axes.margins(x=0.12)
        _label(axes, cell, label)
        if not any(side.values(value) for side in sides):
            axes.set_xticks([])


def _label(axes: "Axes", cell: str, label: str) -> None:
    axes.set_title(cell, fontsize=9)
    axes.set_xlim(0, None)
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.locator_params(axis="x", nbins=_TICKS)
