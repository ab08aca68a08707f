"""The picture of the speedup to the target return, by the number format of the actors."""

from typing import Any

from sitegen.markdown import number
from sitegen.pictures import svg
from sitegen.pictures.svg import Palette
from sitegen.tables.first_screen import QUANTIZED, megabytes, tasks_of_gain

_WIDTH = 420
# Left end of the bars, and the length of the longest bar with its interval.
_LEFT, _LONGEST = 156, 216
_ROW, _BAR = 27, 17
_NAMES = {"torch": "PyTorch, FP32", "fp32": "ONNX Runtime, FP32", "int8": "int8", "int4": "int4"}
_NOTES = {2048: "a stress test", 256: "a common size"}


def speedup(palette: Palette) -> str:
    """The picture as SVG."""
    tasks = [task for task in tasks_of_gain() if task["algorithm"] == "dqn"]
    first = tasks[0]
    longest = max(each["high"] for task in tasks for each in _gains(task).values())
    title = "Times faster than with PyTorch actors"
    until = f"{first['algorithm'].upper()} on {first['environment']}, seconds until the target return"
    parts = [svg.text(8, 24, title, 18, palette.text, bold=True), svg.text(8, 45, until, 14, palette.muted)]
    y = 66.0
    for task in tasks:
        note = f"{megabytes(task)} MB: {_NOTES[task['width']]}"
        parts.append(svg.text(8, y + 12, f"3 x {task['width']} units", 15, palette.text, bold=True))
        parts.append(svg.text(_WIDTH - 8, y + 12, note, 14, palette.muted, anchor="end"))
        y += 20
        for name, gain in _gains(task).items():
            parts += _row(palette, y, name, gain, _LONGEST / longest)
            y += _ROW
        y += 14
    seeds = len(first["seeds"])
    parts.append(svg.text(8, y + 8, f"Bars: mean of {seeds} seeds. Lines: 95% interval.", 13.5, palette.muted))
    machine = first["machine"]
    parts.append(svg.text(8, y + 27, f"Machine: {machine['cores']} cores, {machine['cpu']}.", 13.5, palette.muted))
    return svg.document(_WIDTH, y + 36, title, parts)


def _gains(task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Speedup over torch with its interval, for each of `_NAMES`."""
    found = {"torch": {"value": 1.0, "low": 1.0, "high": 1.0}}
    for variant in task["variants"]:
        for ratio in variant["ratios"]:
            if variant["name"] in _NAMES and ratio["baseline"] == "torch":
                found[variant["name"]] = ratio["time_to_target"]
    return found


def _row(palette: Palette, y: float, name: str, gain: dict[str, float], scale: float) -> list[str]:
    quantized = name in QUANTIZED
    color = palette.accents[QUANTIZED.index(name)] if quantized else palette.plain
    middle, end = y + _ROW / 2, _LEFT + gain["value"] * scale
    low, high = (_LEFT + gain[bound] * scale for bound in ("low", "high"))
    parts = [
        svg.text(_LEFT - 8, middle + 5, _NAMES[name], 14, palette.text, bold=quantized, anchor="end"),
        svg.box(_LEFT, middle - _BAR / 2, end - _LEFT, _BAR, color),
    ]
    if high > low:
        parts.append(svg.line(low, middle, high, middle, palette.text))
        parts += [svg.line(at, middle - 4, at, middle + 4, palette.text) for at in (low, high)]
    value = number(float(f"{gain['value']:.2g}"))
    parts.append(svg.text(max(end, high) + 6, middle + 5, value, 15, palette.text, bold=quantized))
    return parts
