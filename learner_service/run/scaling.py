"""How many actors a run can use: what the learner can absorb, over what one actor makes when nothing holds it back.

docs/concepts/scaling.md explains the rule; benchmarks/scale/scaling.py simulates it.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)

# Of a moving window of measurements, and of what must be in it before it counts.
_WINDOW_S = 60.0
_SETTLE_S = 10.0
# Actors beyond the exact quotient. HPA ignores differences of up to a tenth: without this it would leave the learner
# starved by as much.
_HEADROOM = 0.1
# After which a learner that cannot measure, since nobody is there, goes by how many have connected.
_PATIENCE_S = 60.0
# In which the replay should get its minimum, before which nothing is learned and no demand can be measured.
_FILL_S = 60.0
# How far the wish may move from the number before the number follows: up, and down.
_UP, _DOWN = 1.05, 0.92
# By which the wish must lie below a whole number to let go of an actor: the others may be slower than it.
_SPARE = 0.2
_MOST_ACTORS = 20_000


@dataclass(frozen=True)
class Scaling:
    """What was measured over the window, None where that cannot be told, and what follows from it.

    starved_fraction: of the time, in which the trainer waited for data.
    blocked_fraction: of the connected actors' time, in which they waited for credit.
    demand: transitions per second that the learner takes while it does not wait.
    supply_per_actor: transitions per second that one actor makes while it does not wait.
    """

    starved_fraction: float | None
    blocked_fraction: float | None
    demand: float | None
    supply_per_actor: float | None
    desired_actors: int


@dataclass(frozen=True)
class _Mark:
    """Totals at one time: samples, seconds starved; steps of actors, their seconds at work and waiting."""

    at: float
    samples: int = 0
    starved_s: float = 0.0
    steps: int = 0
    active_s: float = 0.0
    waited_s: float = 0.0


@dataclass(frozen=True)
class _Report:
    incarnation: int
    at: float
    steps: int
    waited_s: float


class ScalingSignal:
    """Measures both sides of the rate limiter. Lives on the event loop; a report costs a few additions.

    clock: monotonic seconds.
    """

    def __init__(self, samples_per_insert: float, clock: Callable[[], float], window_s: float = _WINDOW_S) -> None:
        self._samples_per_insert = samples_per_insert
        self._clock = clock
        self._window_s = window_s
        self._marks: deque[_Mark] = deque()
        self._reports: dict[str, _Report] = {}
        self._steps = 0
        self._active_s = 0.0
        self._waited_s = 0.0
        self._most_connected = 0
        self._observed_since: float | None = None
        self._demand: float | None = None
        self._supply: float | None = None
        self._desired = 0

    def note_report(self, actor: str, incarnation: int, steps: int, waited_s: float) -> None:
        """An actor told how many steps it has made, and for how many seconds it has waited for credit, since its start.

        The first report of an incarnation only says where to count from: what came before was starting up. So does one
        after figures that cannot be: they would spoil the totals for good.
        """
        now, last = self._clock(), self._reports.get(actor)
        self._reports[actor] = _Report(incarnation, now, steps, waited_s)
        if last is None or last.incarnation != incarnation:
            return
        done, waited, passed = steps - last.steps, waited_s - last.waited_s, now - last.at
        # Reports that were held up come together: one alone may tell of more time than has passed since the one before.
        if done >= 0 and 0 <= waited <= passed + self._window_s:
            self._steps += done
            self._waited_s += waited
            self._active_s += passed - waited

    def forget(self, actor: str) -> None:
        """An actor has left."""
        self._reports.pop(actor, None)

    def observe(self, samples: int, starved_s: float, connected: int, paused: bool = False, missing: int = 0) -> None:
        """Note the trainer's totals and how many actors are connected now; to be called about once a second.

        missing: transitions that must come before the first update.

        While training is paused nothing is learned of the demand: what was wished for before stays.
        """
        self._most_connected = max(self._most_connected, connected)
        if self._observed_since is None:
            self._observed_since = self._clock()
        if paused:
            self._marks.clear()
            return
        now = self._clock()
        self._marks.append(_Mark(now, samples, starved_s, self._steps, self._active_s, self._waited_s))
        while len(self._marks) > 2 and now - self._marks[1].at >= self._window_s:
            self._marks.popleft()
        self._decide(missing)

    @property
    def can_tell(self) -> bool:
        """Whether `desired_actors` was measured, or there was a minute for that: then nobody is there to measure.

        Until then a restarted learner knows nothing of the actors that are on their way back.
        """
        waited_s = 0.0 if self._observed_since is None else self._clock() - self._observed_since
        return self._desired > 0 or waited_s >= _PATIENCE_S

    @property
    def desired_actors(self) -> int:
        """How many actors the run can use; before that can be told, as many as it has had, and at least one."""
        return self._desired or max(1, self._most_connected)

    def status(self) -> Scaling:
        """Everything measured over the window."""
        first, last = self._ends()
        seconds = last.at - first.at
        actor_s = last.active_s - first.active_s + last.waited_s - first.waited_s
        return Scaling(
            starved_fraction=_fraction(last.starved_s - first.starved_s, seconds),
            blocked_fraction=_fraction(last.waited_s - first.waited_s, actor_s),
            demand=self._demand,
            supply_per_actor=self._supply,
            desired_actors=self.desired_actors,
        )

    def _ends(self) -> tuple[_Mark, _Mark]:
        return (self._marks[0], self._marks[-1]) if self._marks else (_Mark(0.0), _Mark(0.0))

    def _decide(self, missing: int) -> None:
        first, last = self._ends()
        if last.at - first.at < _SETTLE_S:
            return
        busy_s = (last.at - first.at) - (last.starved_s - first.starved_s)
        samples, steps = last.samples - first.samples, last.steps - first.steps
        active_s = last.active_s - first.active_s
        # What cannot be measured now was last measured when it could: actors that only wait, a trainer that only waits.
        if samples > 0 and busy_s > 0:
            self._demand = samples / busy_s / self._samples_per_insert
        if steps > 0 and active_s > 0:
            self._supply = steps / active_s
        if self._supply is None:
            return
        if missing > 0:
            self._ask_for(max(self.desired_actors, math.ceil(missing / _FILL_S / self._supply)))
        elif self._demand is not None:
            self._follow(self._demand / self._supply * (1 + _HEADROOM))

    def _follow(self, wish: float) -> None:
        if self._desired and _DOWN * self._desired <= wish <= _UP * self._desired:
            return
        if wish > self._desired:
            self._ask_for(math.ceil(wish))
        else:
            self._ask_for(min(self._desired, math.ceil(wish + _SPARE)))

    def _ask_for(self, actors: int) -> None:
        desired = min(_MOST_ACTORS, max(1, actors))
        if desired != self._desired:
            _log.info("the run can use %d actors (before: %s)", desired, self._desired or "not known")
            self._desired = desired


def _fraction(part: float, whole: float) -> float | None:
    # What is counted at one end and what at the other may differ by a report.
    return min(1.0, max(0.0, part / whole)) if whole > 0 else None
