"""A small bar chart of text."""

from collections.abc import Sequence
from itertools import pairwise

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def bars(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """`height` lines of `width` columns, the oldest value on the left. Values are clipped to `low` and `high`.

    If there are more values than columns, neighbors are averaged. With fewer values the right side stays empty.
    """
    shown = _squeezed(values, width)
    span = (high - low) or 1.0
    levels = [max(1, round((min(max(value, low), high) - low) / span * height * 8)) for value in shown]
    return [
        "".join(_EIGHTHS[min(8, max(0, level - row * 8))] for level in levels).ljust(width)
        for row in reversed(range(height))
    ]


def _squeezed(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
