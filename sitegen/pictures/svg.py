"""Pieces of SVG: colors of both schemes, text, boxes and arrows."""

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parents[2] / "docs" / "images"
_FONTS = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True)
class Palette:
    """Colors of a color scheme. accents: colors of the main content, the strongest last."""

    name: str
    text: str
    muted: str
    plain: str
    box: str
    accents: tuple[str, str]


LIGHT = Palette("light", "#1f2328", "#59636e", "#aab2bc", "#f3f4fb", ("#7b8be0", "#3f51b5"))
DARK = Palette("dark", "#e6edf3", "#a3acb8", "#5b6470", "#20242f", ("#5366c4", "#8494f2"))
PALETTES = (LIGHT, DARK)


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(
    x: float, y: float, content: str, size: float, color: str, *, bold: bool = False, anchor: str = "start"
) -> str:
    """A line of text with its baseline at y. anchor: start, middle or end."""
    weight = ' font-weight="600"' if bold else ""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    place = f'x="{number(x)}" y="{number(y)}"'
    return f'<text {place} font-size="{number(size)}" fill="{color}"{weight}{at}>{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, *, stroke: str = "", radius: float = 3) -> str:
    """A rectangle with round corners."""
    line = f' stroke="{stroke}" stroke-width="1.5"' if stroke else ""
    size = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    return f'<rect {size} rx="{number(radius)}" fill="{fill}"{line}/>'


def line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1.5, *, arrow: bool = False) -> str:
    """A line. arrow: whether it ends with the marker `arrow`, which the picture defines with `arrow_marker`."""
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    marker = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<line {ends} stroke="{color}" stroke-width="{number(width)}"{marker}/>'


def arrow_marker(color: str) -> str:
    """The definition of the marker `arrow`."""
    return (
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" '
        f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{color}"/></marker></defs>'
    )


def document(width: float, height: float, title: str, parts: list[str]) -> str:
    """A whole picture. title: text for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" '
        f'width="{number(width)}" height="{number(height)}" role="img" font-family="{_FONTS}">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *parts, "</svg>", ""])
