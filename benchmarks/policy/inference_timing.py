"""Times calls that take turns, in a tight loop or with cold processor caches.

Times are CPU time of the calling thread, which does all the work. On a quiet machine this equals wall-clock time. On a
busy one it excludes other processes.
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
    """Time each call in a loop of about `slice_s` seconds, in turns, `repeats` times."""
    return {name: Timing.of(values) for name, values in _slices(calls, repeats, slice_s, clock).items()}


def slowness(
    call: Call, other: Call, repeats: int, slice_s: float, clock: Callable[[], float] = time.thread_time
) -> float:
    """The time of a call relative to another call: the median over pairs of slices. The two slices of a pair follow
    each other, so a change of the machine's speed affects at most one pair.
    """
    slices = _slices({"call": call, "other": other}, repeats, slice_s, clock)
    return statistics.median(mine / its for mine, its in zip(slices["call"], slices["other"], strict=True))


def _slices(
    calls: Mapping[str, Call], repeats: int, slice_s: float, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Microseconds of a call in each slice."""
    numbers = {name: _number(call, slice_s, clock) for name, call in calls.items()}
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats):
        for name in _turned(list(calls), repeat):
            call = calls[name]
            started = clock()
            for _ in range(numbers[name]):
                call()
            figures[name].append(1e6 * (clock() - started) / numbers[name])
    return figures


def cold(
    calls: Mapping[str, Call], repeats: int, evict_bytes: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, Timing]:
    """Time single calls, in turns, each after writes over `evict_bytes`, which fill the caches with other data.

    An environment's step has the same effect on the policy that acts after it.
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
    """Number of calls for a slice. Warms up with calls for at least half a slice."""
    started = clock()
    for number in count(1):
        call()
        elapsed = clock() - started
        if elapsed >= slice_s / 2:
            return max(1, round(number * slice_s / elapsed))
    raise AssertionError("unreachable")


def _turned(names: list[str], turn: int) -> list[str]:
    """The names, rotated so that each repeat begins with another one."""
    offset = turn % len(names)
    return names[offset:] + names[:offset]


def _overhead(clock: Callable[[], float]) -> float:
    """Seconds that reading the clock twice takes."""
    spans = []
    for _ in range(1000):
        started = clock()
        spans.append(clock() - started)
    return statistics.median(spans)
