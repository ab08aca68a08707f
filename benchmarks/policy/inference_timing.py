"""Microseconds per call of things that take turns, in a tight loop or with the processor's own caches cold.

Times are CPU time of the calling thread, on which everything here computes: the wall clock of a quiet machine, and on
a busy one free of what others do.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Microseconds per call: median, lowest and highest of the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, microseconds: list[float]) -> "Timing":
        """The timing of these repeats."""
        return cls(statistics.median(microseconds), min(microseconds), max(microseconds))


def tight(
    calls: Mapping[str, Call], repeats: int, slice_s: float, clock: Callable[[], float] = time.thread_time
) -> dict[str, Timing]:
    """Time each in a loop of about `slice_s` seconds, in turn, `repeats` times."""
    numbers = {name: _number(call, slice_s, clock) for name, call in calls.items()}
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats):
        for name in _turned(list(calls), repeat):
            call = calls[name]
            started = clock()
            for _ in range(numbers[name]):
                call()
            figures[name].append(1e6 * (clock() - started) / numbers[name])
    return {name: Timing.of(values) for name, values in figures.items()}


def cold(
    calls: Mapping[str, Call], repeats: int, evict_bytes: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, Timing]:
    """Time single calls, in turn, each after a pass of writes over `evict_bytes`, which puts other data in the caches.

    An environment's step does the same to the policy that acts after it.
    """
    filler = np.zeros(evict_bytes // 8)
    overhead = _overhead(clock)
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats):
        for name in _turned(list(calls), repeat):
            call = calls[name]
            filler += 1.0
            started = clock()
            call()
            figures[name].append(1e6 * (clock() - started - overhead))
    return {name: Timing.of(values) for name, values in figures.items()}


def _number(call: Call, slice_s: float, clock: Callable[[], float]) -> int:
    """How often to call for a slice; calls it for half a slice at least, to warm it up."""
    started = clock()
    for number in count(1):
        call()
        elapsed = clock() - started
        if elapsed >= slice_s / 2:
            return max(1, round(number * slice_s / elapsed))
    raise AssertionError("unreachable")


def _turned(names: list[str], turn: int) -> list[str]:
    """The names, beginning with another one each time: none always comes after the same other one's start."""
    offset = turn % len(names)
    return names[offset:] + names[:offset]


def _overhead(clock: Callable[[], float]) -> float:
    """Seconds that reading the clock twice takes."""
    spans = []
    for _ in range(1000):
        started = clock()
        spans.append(clock() - started)
    return statistics.median(spans)
