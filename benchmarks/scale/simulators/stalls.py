"""Frozen and killed simulators: the steps of the others before and after."""

import json
import mmap
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale.simulators.messages import Messages

FROZEN, KILLED = "frozen", "killed"
_SIGNALS = {FROZEN: signal.SIGSTOP, KILLED: signal.SIGKILL}
_READ_S = 0.05
_START_S = 120.0
_FIRST_STEPS = 50


@dataclass(frozen=True)
class Stall:
    """Which simulators stop: `stalled` of `simulators`. pause_s: seconds of a simulator's own work for a step."""

    kind: str
    simulators: int
    stalled: int
    pause_s: float


@dataclass(frozen=True)
class _Players:
    processes: Sequence["subprocess.Popen[str]"]
    counts: memoryview

    def until_all_play(self) -> None:
        """Wait for the first steps of all. Raises SystemExit when a simulator does not play."""
        begun = time.monotonic()
        while min(self.counts) < _FIRST_STEPS:
            if time.monotonic() - begun > _START_S or any(process.poll() is not None for process in self.processes):
                raise SystemExit(f"not all simulators play: {list(self.counts)} steps")
            time.sleep(_READ_S)

    def rate(self, first: int, seconds: float) -> float:
        """Steps per second of the first ones together."""
        before, at = sum(self.counts[:first]), time.monotonic()
        time.sleep(seconds)
        return (sum(self.counts[:first]) - before) / (time.monotonic() - at)


def loss(stall: Stall, address: str, sent: Messages, seconds: float) -> dict[str, float]:
    """The others' steps per second in the time before the stall and in the time that begins with it, and their loss."""
    others = stall.simulators - stall.stalled
    with _players(stall, address, sent) as players:
        players.until_all_play()
        before = players.rate(others, seconds)
        for process in players.processes[others:]:
            process.send_signal(_SIGNALS[stall.kind])
        after = players.rate(others, seconds)
    return {"before": round(before, 1), "after": round(after, 1), "loss": round(1 - after / before, 4)}


@contextmanager
def _players(stall: Stall, address: str, sent: Messages) -> Iterator[_Players]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / "counts"
        file.write_bytes(bytes(8 * stall.simulators))
        shared = stack.enter_context(mmap.mmap(stack.enter_context(file.open("r+b")).fileno(), 0))
        counts = stack.enter_context(memoryview(shared).cast("q"))
        processes = []
        for index in range(stall.simulators):
            module = [sys.executable, "-m", "benchmarks.scale.simulators.player"]
            command = [*module, address, str(file), str(index), str(stall.pause_s)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdin is not None
            with process.stdin as told:
                told.write(json.dumps(sent.as_text()) + "\n")
            processes.append(process)
        yield _Players(processes, counts)
