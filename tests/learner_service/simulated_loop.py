"""An event loop's timers on simulated time."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import cast

from learner_service.actors.credits import Credits
from learner_service.replay import RateLimiter


class SimulatedLoop:
    """Runs due calls when a test lets time pass. Replaces the parts of a loop that credits use."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def time(self) -> float:
        """Seconds."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` when so much time has passed."""
        heapq.heappush(self._due, (when, next(self._order), callback))
        # Nobody cancels one.
        return cast(asyncio.TimerHandle, self)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """Call `callback` the next time that time passes."""
        self.call_at(self._now, callback)

    def is_closed(self) -> bool:
        """Never."""
        return False

    def pass_time(self, seconds: float) -> None:
        """Let time pass and run the calls that become due, in order."""
        until = self._now + seconds
        while self._due and self._due[0][0] <= until:
            when, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, when)
            callback()
        self._now = until


def credits_on(loop: SimulatedLoop, limiter: RateLimiter, segment_transitions: int) -> Credits:
    """Credits whose time is simulated."""
    return Credits(limiter, segment_transitions, cast(asyncio.AbstractEventLoop, loop))
