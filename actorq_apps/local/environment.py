"""Gets the spec of an environment from a separate process, and reports problems of the environment."""

import json
import os
import re
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.domain.environments import modules_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.plugins import Place, is_library
from actorq.text import one_line
from actorq_apps.local.child import describe_exit
from actorq_apps.local.forkserver import ForkServers, start_process

# Time for the process's own imports, before the first call.
_START_S = 60.0
# Time until a process is killed that has answered or got SIGABRT.
_PATIENCE_S = 5.0
_START = "the start of its process"
_MOST_BYTES = 16 * 1024**2
_LAST_LINE_BYTES = 300
_TAIL_BYTES = _READ_BYTES = 64 * 1024
# faulthandler's output for the thread that got a signal.
_CRASH = "Fatal Python error"
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in ')


def environment_of(config: RunConfig, servers: ForkServers | None = None) -> EnvironmentSpec:
    """The spec of the environment as actors see it, after one reset and one step. See `try_environment`."""
    return try_environment(config, servers=servers)[0]


def try_environment(
    config: RunConfig, steps: int = 0, servers: ForkServers | None = None, slow_s: float = 10.0
) -> tuple[EnvironmentSpec, dict[str, Any]]:
    """The spec of the environment as actors see it, and figures of random steps in it; empty without steps.

    A slow call is reported on standard error. Raises UserError when the environment cannot be created, does not work,
    ends its process, or hangs.

    steps: maximum number; see `actor_service.environments.trial`. slow_s: seconds after which a call is reported.
    """
    environment, limit_s = config.environment, config.actor.environment_timeout_s
    # This process is not a whole actor, whose imports would delay the first action.
    command = (
        *(sys.executable, "-m", "actor_service.environments", environment, "--backend", config.environment_backend),
        *("--arguments", config.environment_arguments.to_text(), "--lifeline", "--steps", str(steps)),
        *(("--goals",) if config.hindsight.copies and config.on_policy is None else ()),
    )
    held, lifeline = socket.socketpair()
    with TemporaryFile("w+b") as output, held:
        with lifeline:
            streams = (lifeline.fileno(), output.fileno(), output.fileno())
            process = start_process(command, streams, servers)
        answers = _Answers(held, environment, limit_s, slow_s)
        try:
            answer = answers.last()
            if answers.hangs:
                # SIGABRT prints where the process hangs.
                os.kill(process.pid, signal.SIGABRT)
            answers.await_end()
        finally:
            # Ctrl-C on the terminal does not reach the process. Its children must not outlive it.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        if "spec" in answer:
            return EnvironmentSpec.from_json(answer["spec"]), answer.get("figures") or {}
        line, place = _last_words(output)
        said = f"; its last line: {line}" if line else ""
        if "error" in answer:
            raise UserError(answer["error"] + (said if answer.get("exits") else ""))
        if answers.hangs:
            event = f"has not returned for {limit_s:g} s{place}; --actor.environment-timeout-s sets the limit"
        elif code >= 0:
            event = f"ended the process with exit code {code}{said}"
        else:
            event = f"was killed by {describe_exit(code)}{place}{said}"
        raise UserError(f"environment {environment}: {answers.call or _START} {event}")


def modules_here(config: RunConfig) -> list[str]:
    """The modules that the run's environment would import from the working directory, sorted."""
    here = Path.cwd()
    found = []
    for module in sorted(modules_of(config.environment, config.environment_arguments)):
        top = module.partition(".")[0]
        if (here / f"{top}.py").exists() or (here / top).is_dir():
            found.append(module)
    return found


class _Answers:
    """The answers of the process that tries an environment: each call before it begins, then the spec or an error."""

    def __init__(self, held: socket.socket, environment: str, limit_s: float, slow_s: float) -> None:
        self.call, self.hangs = "", False
        self._held, self._environment = held, environment
        self._limit_s, self._slow_s = limit_s, slow_s
        self._pending = b""

    def last(self) -> dict[str, Any]:
        """The first answer that is not a call; empty if the process ends or hangs before."""
        while line := self._next_line():
            answer: dict[str, Any] = json.loads(line)
            if "call" not in answer:
                return answer
            self.call = answer["call"]
        return {}

    def await_end(self) -> None:
        """Wait for the end of the process for a short time."""
        self._held.settimeout(_PATIENCE_S)
        with suppress(OSError):
            while self._held.recv(_READ_BYTES):
                pass

    def _next_line(self) -> bytes:
        """The next line; empty if the process ends or hangs."""
        limit_s = self._limit_s if self.call else max(self._limit_s, _START_S)
        for slice_s in (min(self._slow_s, limit_s), max(0.0, limit_s - self._slow_s)):
            until = time.monotonic() + slice_s
            while b"\n" not in self._pending and (left := until - time.monotonic()) > 0:
                self._held.settimeout(left)
                try:
                    data = self._held.recv(_READ_BYTES)
                except TimeoutError:
                    break
                except ConnectionResetError:
                    return b""
                if not data or len(self._pending) > _MOST_BYTES:
                    return b""
                self._pending += data
            if b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                return line
            if slice_s == self._slow_s < limit_s:
                text = (
                    f"environment {self._environment}: {self.call or _START} has not returned for {self._slow_s:g} s; "
                    f"it has {limit_s:g} s (--actor.environment-timeout-s)"
                )
                print(text, file=sys.stderr, flush=True)  # noqa: T201
        self.hangs = True
        return b""


def _last_words(output: Any) -> tuple[str, str]:
    """The last line of an output without a crash's traceback, and the place of the crash, such as " (arm.py:12)"."""
    end = output.seek(0, os.SEEK_END)
    output.seek(max(0, end - _TAIL_BYTES))
    words, crashed, crash = output.read().decode("utf-8", "replace").rpartition(_CRASH)
    if not crashed:
        words, crash = crash, ""
    line = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
    thread = crash.partition("Current thread")[2].partition("\n\n")[0]
    frames = [found for line in thread.splitlines() if (found := _FRAME.match(line))]
    place = next((Place(each["file"], int(each["line"])) for each in frames if not is_library(each["file"])), None)
    return one_line(line, _LAST_LINE_BYTES), f" ({place})" if place else ""
