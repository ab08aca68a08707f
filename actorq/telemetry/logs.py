"""Configures logging: lines on standard error, which launchers and clusters collect."""

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from actorq.text import one_line

_DATE_FORMAT = "%Y-%m-%dT%H:%M:%S"
_MAX_TRACEBACK_LINES = 100
_BURST, _LINES_PER_SECOND = 100.0, 1.0


def configure_logging(name: str, role: str = "", run: str = "", form: Literal["text", "json"] = "text") -> None:
    """Log to standard error: as "TIME NAME LEVEL module: message", or as one JSON object per line.

    name: the process's name in the run. role, run: the process's role and the run's name; only JSON includes them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(name, role, run) if form == "json" else LineFormatter(name))
    handler.addFilter(FloodFilter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # The INFO lines of these libraries repeat information that their callers log better.
    for noisy in ("grpc", "asyncio", "onnx_ir", "onnxscript", "torch.onnx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class FloodFilter(logging.Filter):
    """Limits each place in the code to a burst of lines, then to one line a second.

    A peer's action may deserve a line, but no peer may fill the disk with lines. The next written line reports how many
    lines were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record. Errors always pass: they are faults of this process, and rare."""
        if record.levelno >= logging.ERROR:
            return True
        place = self._places.setdefault((record.pathname, record.lineno), _Place(_BURST, self._clock()))
        left_out = place.acquire(self._clock())
        if left_out:
            record.msg = f"({left_out} similar lines were left out) {record.msg}"
        return left_out is not None


@dataclass
class _Place:
    """A place in the code: the lines that it may write now, the time of that count, and the lines left out."""

    lines: float
    at: float
    left_out: int = 0

    def acquire(self, now: float) -> int | None:
        """The number of lines left out before this line; None when this line is left out too."""
        self.lines = min(_BURST, self.lines + (now - self.at) * _LINES_PER_SECOND)
        self.at = now
        if self.lines < 1:
            self.left_out += 1
            return None
        self.lines -= 1
        left_out, self.left_out = self.left_out, 0
        return left_out


class LineFormatter(logging.Formatter):
    """Formats a record as one line of at most 2 kB, with an indented line for each line of its traceback.

    A message may quote a peer. Unprintable characters are escaped, so that no peer can forge a line or
    control a terminal.
    """

    def __init__(self, name: str) -> None:
        shown = one_line(name).replace("%", "%%")
        super().__init__(f"%(asctime)s.%(msecs)03d {shown} %(levelname)s %(name)s: %(message)s", _DATE_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 name given by logging
        """The line of the record without its traceback."""
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line, then the traceback."""
        line, *traceback = super().format(record).split("\n")
        return "\n".join([line, *(f"  {part}" for part in _shortened(traceback))])


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object on one line. JSON escapes unprintable characters.

    Keys: time (UTC), level, logger, message (at most 2 kB), name, role, run; traceback, only after an exception.
    """

    def __init__(self, name: str, role: str, run: str) -> None:
        super().__init__()
        self._process = {"name": name, "role": role, "run": run}

    def format(self, record: logging.LogRecord) -> str:
        """The object."""
        seconds = time.strftime(_DATE_FORMAT, time.gmtime(record.created))
        values = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": one_line(record.getMessage()),
            **self._process,
        }
        if record.exc_info:
            values["traceback"] = "\n".join(_shortened(self.formatException(record.exc_info).split("\n")))
        return json.dumps(values)


def _shortened(traceback: list[str]) -> list[str]:
    """The lines of a traceback, each bounded and printable. A long traceback keeps its first and last lines."""
    if len(traceback) > _MAX_TRACEBACK_LINES:
        left_out = len(traceback) - _MAX_TRACEBACK_LINES
        half = _MAX_TRACEBACK_LINES // 2
        traceback = [*traceback[:half], f"... {left_out} lines ...", *traceback[-half:]]
    return [one_line(line) for line in traceback]
