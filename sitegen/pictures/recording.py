"""Records `actorq train` on a terminal as an animated SVG: `python -m sitegen.pictures.recording`.

If the reader's system requests reduced motion, only the last screen is visible.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby
from pathlib import Path
from xml.sax.saxutils import escape

from rich.ansi import AnsiDecoder
from rich.text import Text

from sitegen.pictures import svg, terminal

COLUMNS, _ROWS = 80, 60
# Period of the display.
_PERIOD_S = 0.25
# Maximum seconds of the run in the picture, and seconds of its last screen.
_LONGEST_S, _LAST_S = 20.0, 6.0
_PADDING = 14.0
# Lines of the smallest panel with the status of the run.
_WHOLE = 16
_COMMAND = ("train",)
# Control sequence that moves to the first line of the panel, and other sequences.
_REDRAWN = re.compile(r"\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
_CONTROLS = re.compile(r"\x1b\[\?\d+[hl]|\x1b\[\d*[ABCDGJK]")


@dataclass(frozen=True)
class Screen:
    """The lines of a terminal from a time in seconds since the start of the command."""

    at_s: float
    lines: tuple[Text, ...]


def record(command: Sequence[str], folder: Path) -> list[Screen]:
    """Run the command in the folder on a terminal of COLUMNS columns. Raises CalledProcessError if it fails."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(_ROWS)}
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    chunks: list[tuple[float, str]] = []
    written = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:
            # Linux raises this when the last process has closed the terminal.
            break
        if not data:
            break
        written += data
        chunks.append((time.monotonic() - started, written.decode("utf-8", "replace")))
    os.close(ours)
    if (code := process.wait()) != 0:
        raise subprocess.CalledProcessError(code, command, output=chunks[-1][1] if chunks else "")
    return [Screen(at_s, lines) for at_s, text in chunks if (lines := lines_of(text))]


def lines_of(written: str) -> tuple[Text, ...]:
    """The lines on the terminal after a command has written this output. A panel replaces the previous panel."""
    text = ""
    for part in _REDRAWN.split(written):
        text = _without_panel(text) + part
    text = _CONTROLS.sub("", text).replace("\r", "")
    decoded = [part for line in AnsiDecoder().decode(text) for part in line.divide(range(COLUMNS, len(line), COLUMNS))]
    while decoded and not decoded[-1].plain.strip():
        decoded.pop()
    return tuple(decoded)


def _without_panel(text: str) -> str:
    """The lines above the frame of a panel."""
    frame = text.find("╭")
    return text if frame < 0 else text[: text.rfind("\n", 0, frame) + 1]


def thinned(screens: Sequence[Screen], period_s: float = _PERIOD_S) -> list[Screen]:
    """The last screen of each period, at the start of the period. The very last screen keeps its time."""
    found = [
        Screen(number * period_s, list(of)[-1].lines)
        for number, of in groupby(screens, key=lambda screen: int(screen.at_s / period_s))
    ]
    return [*found[:-1], Screen(screens[-1].at_s, screens[-1].lines)]


def without_start(screens: Sequence[Screen]) -> list[Screen]:
    """The screens from the first whole panel on. Before it, processes are still starting."""
    return list(dropwhile(lambda screen: len(screen.lines) < _WHOLE, screens)) or list(screens)


def picture(command: str, screens: Sequence[Screen]) -> str:
    """The animated SVG. A line that does not change between screens is drawn once."""
    started = screens[0].at_s
    took_s = screens[-1].at_s - started
    scale = min(1.0, _LONGEST_S / took_s) if took_s else 1.0
    total_s = took_s * scale + _LAST_S
    starts = [(screen.at_s - started) * scale / total_s for screen in screens] + [1.0]
    height = max(len(screen.lines) for screen in screens)
    drawn: list[str] = []
    times: dict[tuple[float, float], str] = {}
    for number in range(height):
        shown = [terminal.row(screen.lines[number]) if number < len(screen.lines) else "" for screen in screens]
        place = 0
        for content, run in groupby(shown):
            end = place + len(list(run))
            if content:
                span = (starts[place], starts[end])
                name = times.setdefault(span, f"t{len(times)}") if span != (0.0, 1.0) else ""
                name = f"{name} last".strip() if end == len(screens) else name
                at = f"translate(0 {svg.number((number + 1.5) * terminal.LINE)})"
                drawn.append(f'<g class="{name}" transform="{at}">{content}</g>')
            place = end
    prompt = terminal.row(Text.assemble(("$ ", "dim"), (command, "bold")))
    width = COLUMNS * terminal.CELL + 2 * _PADDING
    size = f"{svg.number(width)} {svg.number((height + 1.5) * terminal.LINE + 2 * _PADDING)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">',
            f"<title>{escape(f'{command} on a terminal')}</title>",
            f"<style>{_style(times, total_s)}</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{terminal.BACKGROUND}" stroke="{terminal.FRAME}"/>',
            f'<g transform="translate({_PADDING} {_PADDING})" {terminal.fonts()}>',
            prompt,
            *drawn,
            "</g>",
            "</svg>",
            "",
        ]
    )


def _style(times: dict[tuple[float, float], str], total_s: float) -> str:
    """The animation of each span of time. Without animations the last screen is visible."""
    rules = [f"text{{white-space:pre}}g[class^=t]{{visibility:hidden;animation:{total_s:.1f}s step-end infinite}}"]
    for (start, end), name in times.items():
        visible = "0%" if start == 0 else f"0%{{visibility:hidden}}{start:.2%}"
        hidden = "" if end == 1 else f"{end:.2%}{{visibility:hidden}}"
        rules.append(f"@keyframes {name}{{{visible}{{visibility:visible}}{hidden}}}g.{name}{{animation-name:{name}}}")
    rules.append("g.last{visibility:visible}")
    rules.append("@media (prefers-reduced-motion:reduce){g[class^=t]{animation:none}}")
    return "".join(rules)


def main() -> None:
    """Record a run and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        screens = record([sys.executable, "-m", "actorq_apps.cli.main", *_COMMAND], Path(folder))
    content = picture(f"actorq {' '.join(_COMMAND)}", thinned(without_start(screens)))
    (svg.IMAGES / "panel.svg").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
