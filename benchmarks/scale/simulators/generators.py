"""Runs load generators in processes of their own, and puts their figures together."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks.processes import ServiceProcess
from benchmarks.scale.simulators.messages import Messages

Figures = dict[str, float]


def shares(streams: int, processes: int) -> list[int]:
    """The streams of each process, as even as possible. No process is without a stream."""
    each, more = divmod(streams, processes)
    return [count for count in (each + (number < more) for number in range(processes)) if count]


def play(server: ServiceProcess, sent: Messages, streams: int, processes: int, seconds: float) -> Figures:
    """Play on many streams at once, and measure. Each stream sends a step as soon as it has the last answer.

    Returns actions per second, percentiles of the time to an answer, the number of streams with an answer, and the CPU
    time of server and clients for each action. Raises SystemExit when a generator fails.
    """
    asked = {"address": server.address, "messages": sent.as_text(), "seconds": seconds}
    with ExitStack() as stack:
        started = [stack.enter_context(_generator()) for _ in shares(streams, processes)]
        for process, own in zip(started, shares(streams, processes), strict=True):
            _tell(process, json.dumps({**asked, "streams": own}))
        for process in started:
            _line(process)
        before = server.cost()
        for process in started:
            _tell(process, "go")
        parts = [json.loads(_line(process)) for process in started]
        cpu_s = server.cost().cpu_s - before.cpu_s
    return joined(parts, cpu_s)


def joined(parts: Sequence[dict[str, Any]], server_cpu_s: float) -> Figures:
    """The figures of all generators together. parts: results of `load`."""
    delays = np.concatenate([np.asarray(part["delays_us"], np.float64) for part in parts])
    if not len(delays):
        raise SystemExit("the server has answered no step")
    p50, p99 = np.percentile(delays, (50, 99))
    rate = sum(len(part["delays_us"]) / part["seconds"] for part in parts)
    return {
        "actions_per_s": round(rate, 1),
        "p50_ms": round(float(p50) / 1e3, 3),
        "p99_ms": round(float(p99) / 1e3, 3),
        "answered": sum(part["answered"] for part in parts),
        "server_cpu_us": round(1e6 * server_cpu_s / len(delays), 1),
        "client_cpu_us": round(1e6 * sum(part["cpu_s"] for part in parts) / len(delays), 1),
    }


@contextmanager
def _generator() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "benchmarks.scale.simulators.load"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        # Closes the pipes.
        process.communicate()


def _tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a load generator has failed with exit code {process.wait()}")
    return line
