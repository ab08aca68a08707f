"""Computes how many actors a run can use: the learner's demand for transitions divided by one actor's supply."""

import logging
import math
import operator
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_log = logging.getLogger(__name__)

# Length of the moving window of measurements, and the shortest length that gives a result.
_WINDOW_S = 60.0
_SETTLE_S = 10.0
# Share of actors above the exact quotient. HPA ignores differences of up to a tenth. Without this headroom the learner
# could lack a tenth of its data.
_HEADROOM = 0.1
# A learner without actors cannot measure. After this time it uses the number of actors that have connected.
_PATIENCE_S = 60.0
# The replay should reach its minimum size in this time. Before that there are no updates and no demand.
_FILL_S = 60.0
# The desired number stays while the computed number is in this range around it. Above the range, it grows at once.
_UP, _DOWN = 1.05, 0.92
# The desired number falls after this time below the range. During the first window it would fall in small steps. HPA
# ignores the last step, so surplus actors would stay. When the learner becomes slower, actors first fill their queues.
# That time counts as active, but its transitions are not stored yet. The second window no longer contains it.
_FALL_S = 2 * _WINDOW_S
# To release an actor, the computed number must be this far below a whole number, because the others may be slower.
_SPARE = 0.2
_MOST_ACTORS = 20_000


class _Mark(NamedTuple):
    """Totals at one time: samples, starved seconds, stored transitions, and all actors' active and waiting seconds."""

    at: float = 0.0
    samples: int = 0
    starved_s: float = 0.0
    stored: int = 0
    active_s: float = 0.0
    waited_s: float = 0.0


@dataclass(frozen=True)
class _Report:
    incarnation: int
    at: float
    waited_s: float


class ScalingSignal:
    """Measures both sides of the rate limiter. Lives on the event loop. A report costs a few additions.

    The actors' supply is counted by stored transitions. An actor's report only contains its waiting time, which is
    limited by the elapsed time. A false report therefore has the weight of one actor only.

    samples_per_insert: target of the rate limiter. clock: monotonic seconds.
    demand: transitions per second that the learner uses while it does not wait; None if unknown.
    supply_per_actor: transitions per second that one actor makes while it does not wait; None if unknown.
    """

    def __init__(self, samples_per_insert: float, clock: Callable[[], float]) -> None:
        self.samples_per_insert = samples_per_insert
        self._clock = clock
        self._marks: deque[_Mark] = deque()
        self._reports: dict[str, _Report] = {}
        self._active_s = 0.0
        self._waited_s = 0.0
        self._most_connected = 0
        self._observed_since: float | None = None
        self._low_since: float | None = None
        self.demand: float | None = None
        self.supply_per_actor: float | None = None
        self._desired = 0

    def record_report(self, actor: str, incarnation: int, waited_s: float) -> None:
        """Record an actor's seconds of waiting for credit since its start.

        The first report of an incarnation only starts the count, because the actor was starting up before. Implausible
        figures are ignored, because they would falsify the totals permanently.
        """
        now, last = self._clock(), self._reports.get(actor)
        self._reports[actor] = _Report(incarnation, now, waited_s)
        if last is None or last.incarnation != incarnation:
            return
        waited, passed = waited_s - last.waited_s, now - last.at
        # Delayed reports arrive together, so a report may cover more time than has passed since the previous one.
        if 0 <= waited <= passed + _WINDOW_S:
            self._waited_s += waited
            self._active_s += passed - waited

    def forget(self, actor: str) -> None:
        """Forget an actor that has left."""
        self._reports.pop(actor, None)

    def observe(
        self, samples: int, starved_s: float, stored: int, connected: int, paused: bool = False, missing: int = 0
    ) -> None:
        """Record the trainer's totals and the number of connected actors. Call about once a second.

        stored: total of stored transitions. missing: number of transitions that are still needed for updates, at first
            or after a loss.
        While training is paused, the demand is not measured, and the desired number stays.
        """
        self._most_connected = max(self._most_connected, connected)
        if self._observed_since is None:
            self._observed_since = self._clock()
        if paused:
            self._marks.clear()
            self._low_since = None
            return
        now = self._clock()
        self._marks.append(_Mark(now, samples, starved_s, stored, self._active_s, self._waited_s))
        while len(self._marks) > 2 and now - self._marks[1].at >= _WINDOW_S:
            self._marks.popleft()
        self._decide(missing)

    @property
    def can_tell(self) -> bool:
        """Whether `desired_actors` was measured, or a minute has passed. Before that, actors may still rejoin."""
        waited_s = 0.0 if self._observed_since is None else self._clock() - self._observed_since
        return self._desired > 0 or waited_s >= _PATIENCE_S

    @property
    def desired_actors(self) -> int:
        """Number of actors that the run can use.

        Until it is measured: the largest number of connected actors so far, at least 1.
        """
        return self._desired or max(1, self._most_connected)

    @property
    def starved_fraction(self) -> float | None:
        """Share of the window in which the trainer waited for data; None if unknown."""
        window = self._window()
        return _fraction(window.starved_s, window.at)

    @property
    def blocked_fraction(self) -> float | None:
        """Share of the connected actors' time in the window in which they waited for credit; None if unknown."""
        window = self._window()
        return _fraction(window.waited_s, window.active_s + window.waited_s)

    def _window(self) -> _Mark:
        """The differences between the newest and the oldest mark."""
        return _Mark(*map(operator.sub, self._marks[-1], self._marks[0])) if self._marks else _Mark()

    def _decide(self, missing: int) -> None:
        window = self._window()
        if window.at < _SETTLE_S:
            return
        busy_s = window.at - window.starved_s
        # Keep the last measurement while the actors only wait, or while the trainer only waits.
        if window.samples > 0 and busy_s > 0:
            self.demand = window.samples / busy_s / self.samples_per_insert
        if window.stored > 0 and window.active_s > 0:
            self.supply_per_actor = window.stored / window.active_s
        if self.supply_per_actor is None:
            return
        if missing > 0:
            self._low_since = None
            self._ask_for(max(self.desired_actors, math.ceil(missing / _FILL_S / self.supply_per_actor)))
        elif self.demand is not None:
            self._follow(self.demand / self.supply_per_actor * (1 + _HEADROOM))

    def _follow(self, wish: float) -> None:
        now = self._clock()
        if wish >= _DOWN * self._desired:
            self._low_since = None
            if wish > _UP * self._desired:
                self._ask_for(math.ceil(wish))
        elif self._low_since is None:
            self._low_since = now
        elif now - self._low_since >= _FALL_S:
            self._ask_for(min(self._desired, math.ceil(wish + _SPARE)))

    def _ask_for(self, actors: int) -> None:
        desired = min(_MOST_ACTORS, max(1, actors))
        if desired != self._desired:
            _log.info("the run can use %d actors (before: %s)", desired, self._desired or "not known")
            self._desired = desired


def _fraction(part: float, whole: float) -> float | None:
    # The share is clipped, because the counts of the two ends may differ by a report.
    return min(1.0, max(0.0, part / whole)) if whole > 0 else None
