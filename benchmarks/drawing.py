"""Pictures of the benchmarks: the same size of text in each, in a light and in a dark version."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from actorq_apps.comparison.plots import THEMES, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Sizes in inches and points. On a phone of 360 pixels in width, this text is 10 pixels high.
WIDTH, FONT_SIZE = 4.8, 9.6
_DPI = 150
_PALETTE = 128
# The first are Okabe and Ito's, which color-blind people can distinguish.
COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#8c8c8c", "#9c6b3f", "#7b5ea7", "#6b8e23"),
)
# Color of lines that are not data, such as a target. It is visible on both backgrounds.
NEUTRAL = "#8c8c8c"


def draw(file: Path, height: float, paint: "Callable[[Figure], None]", source: str = "") -> None:
    """Write FILE and, in its folder, FILE-dark.

    height: in inches. paint: draws into an empty figure, once for each version. source: text that the files keep.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        with picture(themed(file, theme), theme, _DPI, FONT_SIZE, source) as figure:
            figure.set_size_inches(WIDTH, height)
            paint(figure)
        _reduce(themed(file, theme))


def _reduce(file: Path) -> None:
    """Store a picture with few colors, which takes a third of the bytes."""
    # Here, because matplotlib brings it.
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    with Image.open(file) as image:
        texts = PngInfo()
        for name in {"Source"} & image.info.keys():
            texts.add_text(name, str(image.info[name]))
        reduced = image.convert("RGB").quantize(_PALETTE)
    reduced.save(file, optimize=True, pnginfo=texts)


def themed(file: Path, theme: str) -> Path:
    """The file of a picture in a theme."""
    return file if theme == "light" else file.with_stem(f"{file.stem}-{theme}")


def panels(figure: "Figure | SubFigure", names: Collection[str], columns: int = 2) -> "dict[str, Axes]":
    """A panel for each name, from the left to the right and then down, with its name as title."""
    columns = min(columns, len(names))
    grid = figure.subplots(rows(names, columns), columns, squeeze=False)
    for spare in grid.flat[len(names) :]:
        spare.set_visible(False)
    for axes, name in zip(grid.flat, names, strict=False):
        axes.set_title(name, fontsize=FONT_SIZE)
    return dict(zip(names, grid.flat, strict=False))


def rows(names: Collection[str], columns: int = 2) -> int:
    """The number of rows of the panels."""
    return -(-len(names) // min(columns, len(names)))


def legend(figure: "Figure", axes: "Axes", columns: int = 3) -> None:
    """The legend of one panel's curves or bars, above all panels. It has fewer columns if it is too wide otherwise."""
    handles, labels = axes.get_legend_handles_labels()
    for count in range(min(columns, len(labels)), 0, -1):
        shown = figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=count)
        if count == 1 or shown.get_window_extent().width <= figure.bbox.width:
            return
        shown.remove()
