"""Measures how long calls take and chooses the fastest. Actors and commands use it for the scheme `auto`.

Actors measure while they act. Calls are therefore timed by the CPU time of their thread. That time excludes other
threads, other processes and waits for Python's lock. Calls must compute on the calling thread.

The calls take turns, so a change in the machine's speed affects all of them. Each turn begins with an untimed call.
That call brings the data back into the caches, as in a loop that acts with one policy.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles

BUDGET_S = 0.2
# Relative differences below this count as noise.
NOISE = 0.02
# A call is hopeless when all its first turns are this many times slower than another call. A processor's speed may
# change by half between two turns.
HOPELESS = 2.0

# Target duration of the timed part of a turn. Reading a thread's CPU time takes about half a microsecond.
_TURN_S = 100e-6
_MOST_REPETITIONS = 64
_WARM_UPS, _FEWEST_CALIBRATIONS, _MOST_CALIBRATIONS = 2, 2, 10
_FEWEST_ROUNDS, _ROUNDS_OF_ALL, _MOST_ROUNDS = 3, 6, 400


def cpu_clock() -> Callable[[], float]:
    """A clock of the thread's CPU time in seconds. Falls back to real time where CPU time has coarse ticks."""
    before, deadline = time.thread_time(), time.perf_counter() + _TURN_S
    while time.perf_counter() < deadline:
        pass
    return time.thread_time if time.thread_time() > before else time.perf_counter


@dataclass(frozen=True)
class Clocks:
    """Two clocks in seconds: the thread's CPU time to time calls, and real time to bound the whole measurement."""

    cpu: Callable[[], float] = field(default_factory=cpu_clock)
    real: Callable[[], float] = time.monotonic


def time_calls(
    calls: Mapping[str, Callable[[], object]],
    budget_s: float = BUDGET_S,
    clocks: Clocks | None = None,
    hopeless: float | None = None,
) -> dict[str, float]:
    """CPU time in seconds of one execution of each call.

    The fastest call's time is the lower quartile over its rounds, because disturbances only ever add time. Each other
    call's time is a multiple of it: the median ratio of the two within a round. The processor's speed hardly changes
    within a round. Rounds end after `budget_s` of real time, but not before the third. Each round begins with another
    call.

    hopeless: drops slow calls from the seventh round on, so that the others get more time. A call is dropped when its
        shortest turn exceeds this multiple of the shortest turn overall.
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
    return _compared(seconds)


def fastest(seconds: Mapping[str, float], preferred: Iterable[str]) -> str:
    """The first of `preferred` with a time within NOISE of the shortest; otherwise the call with the shortest time."""
    shortest = min(seconds, key=lambda name: seconds[name])
    limit = seconds[shortest] * (1 + NOISE)
    return next((name for name in preferred if name in seconds and seconds[name] <= limit), shortest)


def _compared(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Seconds of each call, computed from its turns. Dropped calls have only the first rounds."""
    quartiles = {name: quantiles(turns, n=4, method="inclusive")[0] for name, turns in seconds.items()}
    # Rounds of the calls that were never dropped.
    rounds = max(map(len, seconds.values()))
    reference = min((name for name, turns in seconds.items() if len(turns) == rounds), key=lambda name: quartiles[name])
    # A clock may not advance.
    ratios = {
        name: median(turn / other if other else 1.0 for turn, other in zip(turns, seconds[reference], strict=False))
        for name, turns in seconds.items()
    }
    return {name: ratio * quartiles[reference] for name, ratio in ratios.items()}


def _turn(call: Callable[[], object], repetitions: int, clock: Callable[[], float]) -> float:
    call()
    started = clock()
    for _ in range(repetitions):
        call()
    return (clock() - started) / repetitions


def _repetitions(call: Callable[[], object], clock: Callable[[], float]) -> int:
    for _ in range(_WARM_UPS):
        call()
    # The shortest of several measurements: after an interrupted call, turns would be too short to time.
    once = math.inf
    for done in range(_MOST_CALIBRATIONS):
        if done >= _FEWEST_CALIBRATIONS and once >= _TURN_S:
            break
        once = min(once, _turn(call, 1, clock))
    return min(_MOST_REPETITIONS, max(1, round(_TURN_S / once))) if once > 0 else _MOST_REPETITIONS
