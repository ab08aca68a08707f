"""The program of a sink's process: reads rows from standard input until it closes."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from actorq.text import one_line

# Time to end after the learner has ended without a summary.
_LEFT_ALONE_S = 10


@dataclass(frozen=True)
class Start:
    """The data for starting a tracker. target: server or project. run_id: the same for all learners of the run.
    parameters: by dotted name.
    """

    target: str
    run_id: str
    name: str
    directory: str
    parameters: Mapping[str, Any]


class Tracker(Protocol):
    """A run in an experiment tracker. A call may block and may raise any exception."""

    def add(self, scalars: Mapping[str, float], step: int, wall_time: float) -> None:
        """Add the scalars of an environment step. wall_time: unix seconds."""

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """End the run. summary: content of summary.json; None when the learner has failed."""


def serve(make: Callable[[Start], Tracker]) -> int:
    """Pass rows to a tracker until standard input closes.

    The first failure ends the loop, with one line on standard output. The output of libraries goes to standard error.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # The learner also gets these signals, and closes standard input when it has sent its last rows.
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            _track_rows(make)
        except Exception as error:
            answer.write(one_line(f"{type(error).__name__}: {error}") + "\n")
            return 1
    return 0


def _track_rows(make: Callable[[Start], Tracker]) -> None:
    tracker: Tracker | None = None
    summary: Mapping[str, Any] | None = None
    for line in sys.stdin.buffer:
        row = json.loads(line)
        if tracker is None:
            tracker = make(Start(**row))
        elif "scalars" in row:
            tracker.add(row["scalars"], row["step"], row["wall_time"])
        else:
            summary = row.get("summary")
    if summary is None:
        signal.alarm(_LEFT_ALONE_S)
    if tracker is not None:
        tracker.finish(summary)


def flat(tree: Mapping[str, Any], separator: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree, named by the joined names on their paths."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flat(value, separator, f"{above}{name}{separator}")
        else:
            yield f"{above}{name}", value


def finished(summary: Mapping[str, Any] | None) -> bool:
    """Whether a run is over and was not stopped by an operator."""
    return summary is not None and summary["state"] in ("solved", "budget ended")
