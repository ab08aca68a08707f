"""CPU and wall-clock time of things that take turns, and ratios of what ran next to each other.

On a machine with other work the speed changes from second to second. A ratio is taken within a round, in which each
has one short turn; its median over rounds is what a change of speed between rounds cannot move.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Clock = Literal["cpu", "wall"]


@dataclass(frozen=True)
class Turns:
    """Seconds per call of one contender in each round: CPU time of the whole process, and the wall clock's."""

    cpu: list[float]
    wall: list[float]

    def median(self, clock: Clock) -> float:
        """The median over rounds."""
        return statistics.median(self.of(clock))

    def of(self, clock: Clock) -> list[float]:
        """Every round's."""
        return self.cpu if clock == "cpu" else self.wall


def take_turns(contenders: Mapping[str, Callable[[], object]], rounds: int, slice_s: float) -> dict[str, Turns]:
    """Time each in a loop of about `slice_s` CPU seconds, once a round, each round beginning with another one."""
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
    """How many times as fast ours is: the median over rounds of their time by ours."""
    return statistics.median(b / a for a, b in zip(ours.of(clock), theirs.of(clock), strict=True))


def _calls(contender: Callable[[], object], slice_s: float) -> int:
    """How many calls a slice has; calls it for half a slice at least, which warms it up."""
    calls, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < slice_s / 2:
        contender()
        calls += 1
    return max(1, round(calls * slice_s / elapsed))
