"""Runs a system as a tree of processes: the time of each line, the memory of all processes, a time limit."""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_SAMPLE_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    seconds: from the start of the process to its end.
    peak_memory_mb: largest sum of the resident memory of all processes, sampled twice per second.
    """

    returncode: int
    seconds: float
    timed_out: bool
    peak_memory_mb: float


class ProcessTree:
    """A process and all its descendants, including those whose parent has ended.

    grace_s: seconds from the request to end until the process is killed.
    """

    def __init__(self, root: subprocess.Popen[str], grace_s: float) -> None:
        self._root = root
        self._grace_s = grace_s
        self._known = {psutil.Process(root.pid)}
        self.peak_bytes = 0

    def sample(self) -> None:
        """Find new processes, and measure the memory of all."""
        with suppress(psutil.NoSuchProcess):
            self._known |= set(psutil.Process(self._root.pid).children(recursive=True))
        self.peak_bytes = max(self.peak_bytes, sum(map(_resident, self._known)))

    def end(self) -> None:
        """Ask the root to end. After the grace period, kill the rest of the tree."""
        self.sample()
        self._root.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._root.wait(self._grace_s)
        self.kill()

    def kill(self) -> None:
        """Kill the rest of the tree and wait for its end."""
        self._root.kill()
        self._root.wait()
        for process in self._known:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self._known, timeout=self._grace_s)


def run_tree(
    command: Sequence[str],
    given: str,
    limit_s: float,
    errors: Path,
    on_line: Callable[[float, str], bool | None],
    variables: Mapping[str, str] | None = None,
    grace_s: float = 20.0,
) -> Outcome:
    """Run a command to its end, or end it at the time limit, or when a line is enough.

    given: its stdin. errors: file for its stderr. variables: added to this process's environment variables.
    on_line: called for each line of stdout, with the seconds since the start; True ends the command. grace_s: see
        ProcessTree.
    """
    environment = {**os.environ, **(variables or {})}
    done, late, enough = threading.Event(), threading.Event(), threading.Event()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdin, errors.open("wb") as stderr:
        stdin.write(given)
        stdin.seek(0)
        started = time.monotonic()
        process = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=environment, text=True
        )
    assert process.stdout is not None
    tree = ProcessTree(process, grace_s)

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            tree.sample()
            is_late = time.monotonic() - started > limit_s
            if is_late and not enough.is_set():
                late.set()
            if is_late or enough.is_set():
                tree.end()
                break

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with process.stdout as lines:
            for line in lines:
                if on_line(time.monotonic() - started, line):
                    enough.set()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        seconds = time.monotonic() - started
    finally:
        done.set()
        watcher.join()
        tree.kill()
    return Outcome(process.wait(), seconds, late.is_set(), tree.peak_bytes / 1e6)


def _resident(process: psutil.Process) -> int:
    try:
        resident: int = process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
    return resident
