"""How long calls take beside each other, and which one to take: the rule of `auto`, for actors and for commands.

Calls are timed by the CPU time of the thread that makes them, because an actor measures while it acts: neither what
other threads and processes do nor waiting for Python's lock counts. They must compute on the calling thread.

All calls take turns, so whatever changes the machine's speed meanwhile changes it for all. A turn begins with a call
that is not timed: it brings back from memory what the others have pushed out of the caches, as in a loop that acts
with one policy.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import quantiles

BUDGET_S = 0.2
# Differences below it are taken for noise.
NOISE = 0.02
# How much slower than another one a call must be in all of its first turns not to be the fastest.
HOPELESS = 2.0

# What the timed part of a turn is to take: long beside the half microsecond that reading a thread's CPU time takes.
_TURN_S = 100e-6
_MOST_REPETITIONS = 64
_WARM_UPS, _FEWEST_CALIBRATIONS, _MOST_CALIBRATIONS = 2, 2, 10
_FEWEST_ROUNDS, _ROUNDS_OF_ALL, _MOST_ROUNDS = 3, 6, 400


def cpu_clock() -> Callable[[], float]:
    """Seconds of CPU time of the calling thread; of real time where the system counts the former in long ticks."""
    before, deadline = time.thread_time(), time.perf_counter() + _TURN_S
    while time.perf_counter() < deadline:
        pass
    return time.thread_time if time.thread_time() > before else time.perf_counter


@dataclass(frozen=True)
class Clocks:
    """Seconds of CPU time of the calling thread, by which calls are timed, and of real time, which bounds them all."""

    cpu: Callable[[], float] = field(default_factory=cpu_clock)
    real: Callable[[], float] = time.monotonic


def time_calls(
    calls: Mapping[str, Callable[[], object]],
    budget_s: float = BUDGET_S,
    clocks: Clocks | None = None,
    hopeless: float | None = None,
) -> dict[str, float]:
    """Seconds of CPU time of one call of each.

    It is the lower quartile over the rounds: what disturbs a call only ever makes it longer. Rounds end when
    `budget_s` of real time is over, but not before the third, and each begins with the next one of the calls.

    hopeless: from the seventh round on, calls whose shortest turn is so many times the shortest of all are left out, so
    that there is more time for those among which it is to be decided.
    """
    clocks = clocks or Clocks()
    deadline = clocks.real() + budget_s
    repetitions = {name: _repetitions(call, clocks.cpu) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    shortest = dict.fromkeys(calls, math.inf)
    order = list(calls)
    for done in range(_MOST_ROUNDS):
        if hopeless is not None and done >= _ROUNDS_OF_ALL:
            order = [name for name in order if shortest[name] <= hopeless * min(shortest.values())]
        if done >= _FEWEST_ROUNDS and (clocks.real() >= deadline or len(order) == 1 < len(calls)):
            break
        for name in order:
            turn = _turn(calls[name], repetitions[name], clocks.cpu)
            seconds[name].append(turn)
            shortest[name] = min(shortest[name], turn)
        order.append(order.pop(0))
    return {name: quantiles(samples, n=4, method="inclusive")[0] for name, samples in seconds.items()}


def fastest(seconds: Mapping[str, float], preferred: Iterable[str]) -> str:
    """The first of `preferred` whose time is within NOISE of the shortest; the shortest where none of them is."""
    shortest = min(seconds, key=lambda name: seconds[name])
    limit = seconds[shortest] * (1 + NOISE)
    return next((name for name in preferred if name in seconds and seconds[name] <= limit), shortest)


def _turn(call: Callable[[], object], repetitions: int, clock: Callable[[], float]) -> float:
    call()
    started = clock()
    for _ in range(repetitions):
        call()
    return (clock() - started) / repetitions


def _repetitions(call: Callable[[], object], clock: Callable[[], float]) -> int:
    for _ in range(_WARM_UPS):
        call()
    # The shortest of several: one that is interrupted would make turns too short to be timed.
    once = math.inf
    for done in range(_MOST_CALIBRATIONS):
        if done >= _FEWEST_CALIBRATIONS and once >= _TURN_S:
            break
        once = min(once, _turn(call, 1, clock))
    return min(_MOST_REPETITIONS, max(1, round(_TURN_S / once))) if once > 0 else _MOST_REPETITIONS
