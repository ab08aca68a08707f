"""Tables and numbers as Markdown."""

import math
from collections.abc import Iterable, Sequence
from statistics import median


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; cells are text, numbers, booleans or None (empty)."""
    lines = [head, ["---"] * len(head), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: object) -> str:
    """A value as the text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return " ".join(str(value).split()).replace("|", "\\|")


def number(value: float) -> str:
    """A number with three significant digits, or without decimals if it is larger. Commas separate thousands."""
    if isinstance(value, int) or (math.isfinite(value) and abs(value) >= 100):
        return f"{round(value):,}"
    if value and abs(value) < 1e-4:
        return f"{value:.2e}"
    return f"{float(f'{value:.3g}'):g}"


def interval(found: dict[str, float] | None, middle: str = "median") -> str:
    """A value with its interval, such as `7.2 (5.6 to 8.9)`; empty for None."""
    if found is None:
        return ""
    text = number(found[middle])
    return text if found.get("low") is None else f"{text} ({number(found['low'])} to {number(found['high'])})"


def names(values: Iterable[object]) -> str:
    """Values as code, separated by commas."""
    return ", ".join(f"`{value}`" for value in values)


def percent(share: float, digits: int = 0) -> str:
    """A share as percent."""
    return f"{share:.{digits}%}"


def spread(values: Iterable[float]) -> str:
    """The median. For several different values, also the lowest and the highest."""
    found = sorted(values)
    text = number(median(found))
    return text if found[0] == found[-1] else f"{text} ({number(found[0])} to {number(found[-1])})"
