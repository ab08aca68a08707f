"""Runs the services of a run as processes, and restarts ended processes as a kubelet does."""

import errno
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_RESTART_S = 0.2
_END_S = 60.0
_LAST_LINES = 20
_DISK_FULL = os.strerror(errno.ENOSPC)


@dataclass(frozen=True)
class Exit:
    """The end of a process: when (monotonic seconds), its exit code, and whether a fault or the run's end caused it.

    last_words: the last lines of its log.
    """

    name: str
    at: float
    code: int
    expected: bool
    last_words: tuple[str, ...]


@dataclass
class Member:
    """One service: its command and its current process. lock: held while a process starts or ends."""

    name: str
    command: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes]
    started_at: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    expected: bool = False
    stopped: bool = False


class Fleet:
    """Starts services, sends them signals, and restarts ended services. `close` ends all."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = {**os.environ, **environment}
        self._members: dict[str, Member] = {}
        self._closing = False
        self.exits: list[Exit] = []

    def start(self, name: str, module: str, *flags: str) -> None:
        """Start `python -m MODULE FLAGS` and keep it running."""
        command = (sys.executable, "-m", module, *flags)
        log = self._logs / f"{name}.log"
        member = Member(name, command, log, self._popen(command, log), time.monotonic())
        self._members[name] = member
        threading.Thread(target=self._keep, args=(member,), name=f"keep-{name}", daemon=True).start()

    def has(self, name: str) -> bool:
        """Whether a service has this name."""
        return name in self._members

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal. If it ends the process, that end is expected."""
        member = self._members[name]
        with member.lock:
            if number in (signal.SIGKILL, signal.SIGTERM):
                member.expected = True
            member.stopped = number == signal.SIGSTOP or (member.stopped and number != signal.SIGCONT)
            member.process.send_signal(number)

    def started_at(self, name: str) -> float:
        """Start of its current process, in monotonic seconds."""
        return self._members[name].started_at

    def newest_start(self) -> float:
        """Start of the newest process, in monotonic seconds; infinity while a service has yet to end or to restart."""
        members = self._members.values()
        if any(member.expected or member.process.poll() is not None for member in members):
            return math.inf
        return max(member.started_at for member in members)

    def pid(self, name: str) -> int:
        """The process id of its current process."""
        return self._members[name].process.pid

    def running(self, name: str) -> bool:
        """Whether the process exists and is not stopped by a signal."""
        member = self._members[name]
        return member.process.poll() is None and not member.stopped

    def unexpected(self, since: float = 0.0) -> list[Exit]:
        """Ends that no fault explains, from `since` on."""
        return [end for end in self.exits if not end.expected and end.at >= since]

    def wait(self, name: str, timeout_s: float) -> int | None:
        """Wait for the end of its current process during `finish`. Returns the exit code; None after the timeout."""
        try:
            return self._members[name].process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def finish(self) -> None:
        """From now on nothing is restarted, and every end is expected."""
        self._closing = True

    def close(self) -> None:
        """End everything."""
        self._closing = True
        for member in self._members.values():
            with member.lock:
                member.process.kill()
        for member in self._members.values():
            member.process.wait(_END_S)

    def _popen(self, command: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def _keep(self, member: Member) -> None:
        while True:
            code = member.process.wait()
            if self._closing:
                return
            lines = member.log.read_text(encoding="utf-8", errors="replace").splitlines()
            last_words = tuple(lines[-_LAST_LINES:])
            # On a full disk, a starting service ends with one line, until there is space.
            expected = member.expected or (bool(lines) and _DISK_FULL in lines[-1])
            self.exits.append(Exit(member.name, time.monotonic(), code, expected, last_words))
            threading.Event().wait(_RESTART_S)
            with member.lock:
                if self._closing:
                    return
                member.expected = member.stopped = False
                member.process = self._popen(member.command, member.log)
                member.started_at = time.monotonic()


def until(condition: Callable[[], bool], timeout_s: float, period_s: float = 0.05) -> float | None:
    """Seconds until `condition` holds; None when it does not within `timeout_s` seconds."""
    begun = time.monotonic()
    pause = threading.Event()
    while not condition():
        if time.monotonic() - begun > timeout_s:
            return None
        pause.wait(period_s)
    return time.monotonic() - begun


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine with free ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()
