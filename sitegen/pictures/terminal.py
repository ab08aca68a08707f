"""Lines of a terminal as SVG: text in columns. Frames, charts and bars are shapes, so that they do not depend on the
font.
"""

from collections.abc import Iterable
from itertools import groupby

from rich.color import ColorType
from rich.style import Style
from rich.text import Text

from sitegen.pictures import svg

CELL, LINE = 8.0, 17.0
_SIZE = 13.2
_BASELINE = 12.5
BACKGROUND, FRAME = "#14181f", "#3d444d"
_FOREGROUND, _DIM = "#d7dde5", "#8d97a5"
_COLORS = {1: "#ff7b72", 2: "#6bd089", 3: "#e2b93b", 4: "#7b8be0", 5: "#c79bf2", 6: "#5cc8d7"}
_EIGHTHS = "▁▂▃▄▅▆▇█"
# Lines from the middle of a cell: left, right, up, down.
_STROKES = {
    "─": (1, 1, 0, 0), "│": (0, 0, 1, 1), "┤": (1, 0, 1, 1), "╭": (0, 1, 0, 1), "╮": (1, 0, 0, 1),
    "╰": (0, 1, 1, 0), "╯": (1, 0, 1, 0),
}  # fmt: skip
# Shares of a cell that a thick line covers: from, to.
_THICK = {"━": (0.0, 1.0), "╸": (0.0, 0.5), "╺": (0.5, 1.0)}

Cell = tuple[str, str, bool]
"""A character with its color, and whether it is bold."""


def row(line: Text) -> str:
    """A line of a terminal, with its upper left corner at 0, 0."""
    parts: list[str] = []
    column = 0
    # Spaces match every color, so that they do not split text.
    for (kind, color, bold), run in groupby(_cells(line), key=lambda cell: (_kind(cell[0]), *cell[1:])):
        content = "".join(character for character, *_ in run)
        if kind == "text":
            parts += _words(content, column, color, bold)
        elif kind != " ":
            parts += _shapes(content, column, color)
        column += len(content)
    return "".join(parts)


def _cells(line: Text) -> Iterable[Cell]:
    styles = [Style()] * len(line.plain)
    for span in line.spans:
        style = span.style if isinstance(span.style, Style) else Style.parse(span.style)
        for place in range(span.start, min(span.end, len(styles))):
            styles[place] += style
    return [(character, _color(style), bool(style.bold)) for character, style in zip(line.plain, styles, strict=True)]


def _color(style: Style) -> str:
    if style.color is not None and style.color.type is ColorType.STANDARD and style.color.number is not None:
        return _COLORS.get(style.color.number % 8, _FOREGROUND)
    if style.color is not None and style.color.type in (ColorType.EIGHT_BIT, ColorType.TRUECOLOR):
        return style.color.get_truecolor().hex
    return _DIM if style.dim else _FOREGROUND


def _kind(character: str) -> str:
    if character in _STROKES or character in _THICK or character in _EIGHTHS:
        return character
    return " " if character == " " else "text"


def _words(content: str, column: int, color: str, bold: bool) -> list[str]:
    weight = ' font-weight="700"' if bold else ""
    at = f'x="{svg.number(column * CELL)}" y="{_BASELINE}" textLength="{svg.number(len(content) * CELL)}"'
    escaped = content.replace("&", "&amp;").replace("<", "&lt;")
    return [f'<text {at} fill="{color}"{weight}>{escaped}</text>']


def _shapes(content: str, column: int, color: str) -> list[str]:
    """A run of one character of frames, charts or bars."""
    x, width, character = column * CELL, len(content) * CELL, content[0]
    if character in _EIGHTHS:
        height = LINE * (_EIGHTHS.index(character) + 1) / 8
        return [_filled(x, LINE - height, width, height, color)]
    if character in _THICK:
        start, end = _THICK[character]
        return [_filled(x + start * CELL, LINE / 2 - 1.5, width - CELL + (end - start) * CELL, 3, color)]
    left, right, up, down = _STROKES[character]
    middle = x + CELL / 2
    across, along = (x if left else middle, x + width if right else middle), (0 if up else 8.5, LINE if down else 8.5)
    parts = [f"M{svg.number(across[0])} 8.5H{svg.number(across[1])}"] if left or right else []
    parts += [f"M{svg.number(middle)} {svg.number(along[0])}V{svg.number(along[1])}"] if up or down else []
    return [f'<path d="{"".join(parts)}" stroke="{color}"/>']


def _filled(x: float, y: float, width: float, height: float, color: str) -> str:
    size = f'width="{svg.number(width)}" height="{svg.number(height)}"'
    return f'<rect x="{svg.number(x)}" y="{svg.number(y)}" {size} fill="{color}" shape-rendering="crispEdges"/>'


def fonts() -> str:
    """The attributes of an element with rows."""
    families = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
    return f'font-family="{families}" font-size="{_SIZE}" fill="none" xml:space="preserve"'
