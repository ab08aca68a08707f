"""Statuses as messages, for any number of callers."""

import time
from collections.abc import Callable

from actorq import wire
from actorq.domain.status import RunState, RunStatus
from actorq.v1 import learner_pb2

# Share of the event loop's time, and seconds that may be used at once: a few callers always get a fresh status.
_SHARE, _AT_ONCE_S = 0.2, 1.0


class Statuses:
    """Makes statuses in a bounded share of the event loop's time. Beyond it, callers get the last one again.

    A status takes time in proportion to the number of actors. A new state of the run is never missed.
    """

    def __init__(
        self,
        make: Callable[[], RunStatus],
        state: Callable[[], RunState],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make = make
        self._state = state
        self._clock = clock
        self._last: tuple[RunStatus, learner_pb2.RunStatus] | None = None
        self._left_s = _AT_ONCE_S
        self._counted_at = clock()

    def get(self) -> tuple[RunStatus, learner_pb2.RunStatus]:
        """The status and its message."""
        now = self._clock()
        self._left_s = min(_AT_ONCE_S, self._left_s + _SHARE * (now - self._counted_at))
        self._counted_at = now
        if self._last is None or self._left_s > 0 or self._last[0].state is not self._state():
            status = self._make()
            self._last = status, wire.run_status_to_proto(status)
            self._left_s -= self._clock() - now
        return self._last
