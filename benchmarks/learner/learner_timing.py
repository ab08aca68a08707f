"""CPU and wall-clock time of contenders that take turns, and ratios of neighboring turns.

The speed of a machine with other work changes from second to second. A ratio therefore compares turns of one round, in
which each contender has one short turn. The median over rounds does not depend on changes between rounds.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Clock = Literal["cpu", "wall"]


@dataclass(frozen=True)
class Turns:
    """Seconds per call of one contender in each round, by the CPU time of the process and by the wall clock."""

    cpu: list[float]
    wall: list[float]

    def median(self, clock: Clock) -> float:
        """The median over rounds."""
        return statistics.median(self.of(clock))

    def of(self, clock: Clock) -> list[float]:
        """Every round's."""
        return self.cpu if clock == "cpu" else self.wall


def take_turns(contenders: Mapping[str, Callable[[], object]], rounds: int, slice_s: float) -> dict[str, Turns]:
    """Time each contender in a loop of about `slice_s` CPU seconds per round. Each round begins with another one."""
    calls = {name: _calls(contender, slice_s) for name, contender in contenders.items()}
    turns = {name: Turns([], []) for name in contenders}
    names = list(contenders)
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            contender = contenders[name]
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls[name]):
                contender()
            turns[name].cpu.append((time.process_time() - cpu) / calls[name])
            turns[name].wall.append((time.perf_counter() - wall) / calls[name])
    return turns


def speedup(ours: Turns, theirs: Turns, clock: Clock) -> float:
    """Speed of ours relative to theirs: the median over rounds of their time divided by ours."""
    return statistics.median(b / a for a, b in zip(ours.of(clock), theirs.of(clock), strict=True))


def _calls(contender: Callable[[], object], slice_s: float) -> int:
    """Number of calls in a slice. Warms the contender up with calls for at least half a slice."""
    calls, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < slice_s / 2:
        contender()
        calls += 1
    return max(1, round(calls * slice_s / elapsed))
