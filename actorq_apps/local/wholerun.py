"""Runs `actorq train` as a child process that sends news to its parent.

News are lines of JSON on the child's standard input, a socket. The parent's first line may be the spec of its
environment.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, UserError
from actorq.process import EXIT_BUDGET_ENDED, EXIT_OK, EXIT_USER_ERROR
from actorq_apps.local.child import Child, describe_exit
from actorq_apps.local.events import ChildExited
from actorq_apps.local.forkserver import ForkServers
from actorq_apps.local.observer import Observer, ProcessState, ProcessView
from actorq_apps.local.services import Kind

# Seconds beyond `transport.drain_s` that a run may take to end.
DRAIN_MARGIN_S = 20.0
# A spec has the bounds of each component of an action.
_MOST_SPEC_BYTES = 16 * 1024**2


def start_run(
    name: str,
    root: Path | None,
    config: Path,
    log: Path,
    on_exit: Callable[[ChildExited], None],
    *flags: str,
    resume: bool = False,
    actor_module: str = "",
    inherited: tuple[int, ...] = (),
    servers: ForkServers | None = None,
    on_line: Callable[[Child, str], None] | None = None,
) -> Child:
    """Start or continue a run. When this process ends, the run ends as after SIGTERM.

    root: folder of the run; None for a new one. config: file with the settings. flags: more flags of `actorq train`.
    inherited: descriptors that all processes keep open. servers: from `run_server`. on_line: see `Child`, `read_news`.
    """
    command = [sys.executable, "-m", "actorq_apps.cli.main", "train", "--lifeline", "--config", str(config), *flags]
    command += [] if root is None else ["--run-directory", str(root)]
    command += ["--resume"] if resume else []
    command += ["--actor-module", actor_module] if actor_module else []
    return Child(name, command, log, on_exit, inherited, servers, on_line)


def failure_of(child: Child, code: int) -> ActorQError | None:
    """The reason why a run with this exit code is not over; None if it was solved or its budget ended."""
    if code in (EXIT_OK, EXIT_BUDGET_ENDED):
        return None
    kind = UserError if code == EXIT_USER_ERROR else ActorQError
    return kind(child.user_error() or describe_exit(code))


class Newscast:
    """An observer that forwards everything. It also sends the program news that a learner does not report."""

    def __init__(self, observer: Observer, run: Path) -> None:
        self._observer = observer
        _send({"run": str(run)})

    def process(self, view: ProcessView) -> None:
        """Forward and send."""
        self._observer.process(view)
        _send({"process": asdict(view) | {"kind": view.kind.value, "state": view.state.value}})

    def status(self, status: RunStatus) -> None:
        """Forward."""
        self._observer.status(status)

    def event(self, text: str) -> None:
        """Forward and send."""
        self._observer.event(text)
        send_event(text)


def read_news(
    line: str,
    on_run: Callable[[Path], None],
    on_process: Callable[[ProcessView], None],
    on_event: Callable[[str], None],
) -> None:
    """Call the function for the news in a line. Ignores other lines."""
    with suppress(ValueError, KeyError, TypeError):
        match json.loads(line):
            case {"run": str(folder)}:
                on_run(Path(folder))
            case {"process": dict(found)}:
                kind, state = Kind(found["kind"]), ProcessState(found["state"])
                on_process(ProcessView(**{**found, "kind": kind, "state": state}))
            case {"event": str(text)}:
                on_event(text)


def send_event(text: str) -> None:
    """Send an event."""
    _send({"event": text})


def spec_line(spec: EnvironmentSpec) -> bytes:
    """The line that `read_spec` parses."""
    return json.dumps(spec.to_json()).encode()


def read_spec() -> EnvironmentSpec:
    """Wait for the spec of the program's environment. Raises ActorQError when the program has ended."""
    found = bytearray()
    while not found.endswith(b"\n"):
        # Only the end of the stream follows this line.
        more = os.read(sys.stdin.fileno(), 65536)
        if not more or len(found) > _MOST_SPEC_BYTES:
            raise ActorQError("the program that has the environment ended before it described it")
        found += more
    return EnvironmentSpec.from_json(cast(dict[str, Any], json.loads(found)))


def _send(news: dict[str, Any]) -> None:
    """Send a line. Only the launcher's thread calls this."""
    # A program that has ended needs no news. Its end also ends this run.
    with suppress(OSError):
        os.write(sys.stdin.fileno(), json.dumps(news).encode() + b"\n")
