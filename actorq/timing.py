"""How long calls take beside each other, and which one to take: the rule of `auto`, for actors and for commands.

Calls are timed by the CPU time of the thread that makes them, because an actor measures while it acts: neither what
other threads and processes do nor waiting for Python's lock counts. They must compute on the calling thread.

All calls take turns, so whatever changes the machine's speed meanwhile changes it for all. A turn begins with a call
that is not timed: it brings back from memory what the others have pushed out of the caches, as in a loop that acts
with one policy.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import quantiles

BUDGET_S = 0.2
# Differences below it are taken for noise.
NOISE = 0.03

# What the timed part of a turn is to take: long beside the half microsecond that reading a thread's CPU time takes.
_TURN_S = 100e-6
_MOST_REPETITIONS = 64
_WARM_UPS, _CALIBRATIONS = 3, 10
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 400


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
    calls: Mapping[str, Callable[[], object]], budget_s: float = BUDGET_S, clocks: Clocks | None = None
) -> dict[str, float]:
    """Seconds of CPU time of one call of each.

    It is the lower quartile over the rounds: what disturbs a call only ever makes it longer. Rounds end when
    `budget_s` of real time is over, but not before the third, and each begins with the next one of the calls.
    """
    clocks = clocks or Clocks()
    deadline = clocks.real() + budget_s
    repetitions = {name: _repetitions(call, clocks.cpu) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for done in range(_MOST_ROUNDS):
        if done >= _FEWEST_ROUNDS and clocks.real() >= deadline:
            break
        for name in order:
            seconds[name].append(_turn(calls[name], repetitions[name], clocks.cpu))
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
    once = min(_turn(call, 1, clock) for _ in range(_CALIBRATIONS))
    return min(_MOST_REPETITIONS, max(1, round(_TURN_S / once))) if once > 0 else _MOST_REPETITIONS
