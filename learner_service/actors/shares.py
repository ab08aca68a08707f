"""The share of each actor in a synchronous rollout, while some of the run's actors are missing."""

import logging
import math
import time
from collections.abc import Callable, Collection

_log = logging.getLogger(__name__)

# An actor that is away or silent for a shorter time may return before it counts as missing.
PATIENCE_S = 10.0
_MOST_NAMED = 5


class Shares:
    """The number of steps after which an actor waits for the next policy; 0 for the number that Join has sent.

    steps, actors: the number that Join sends, and the number of actors that it is for; steps 0 for runs that are not
        synchronous. segment: steps of a segment.
    A rollout is complete when all actors have sent their share. With a missing actor it would never be complete, so the
    other actors collect the missing share too.
    """

    def __init__(self, steps: int, actors: int, segment: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._actors, self._segment = steps, actors, segment
        self._clock = clock
        self._missed_since: float | None = None
        self.share = 0

    def update(self, present: Collection[str], away: Collection[str] = (), silent: Collection[str] = ()) -> int:
        """The share, from the names of connected actors, of known other actors and of silent actors.

        Call once a second.
        """
        if not self._steps or not present or len(present) >= self._actors:
            if self.share and present:
                _log.info("queue.synchronous: all %d actors are connected again", self._actors)
            self._missed_since, self.share = None, 0
            return 0
        now = self._clock()
        self._missed_since = now if self._missed_since is None else self._missed_since
        if silent or now - self._missed_since >= PATIENCE_S:
            needed = self._steps * self._actors
            share = math.ceil(needed / len(present) / self._segment) * self._segment
            if share != self.share:
                names = ", ".join(sorted({*away, *silent})[:_MOST_NAMED])
                _log.warning(
                    "queue.synchronous: %d of %d actors are missing%s: the others act %d steps with each policy, "
                    "instead of %d, until they return",
                    *(self._actors - len(present), self._actors, f" ({names})" if names else "", share, self._steps),
                )
            self.share = share
        return self.share
