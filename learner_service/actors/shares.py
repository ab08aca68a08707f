"""How many steps each actor takes of a synchronous rollout, while some of the run's actors are missing."""

import logging
import math
import time
from collections.abc import Callable, Collection

_log = logging.getLogger(__name__)

# An actor that is away, or silent, for less may be back before it is missed.
PATIENCE_S = 10.0
_MOST_NAMED = 5


class Shares:
    """The steps of each environment after which an actor waits for the next policy; 0 for what Join has told.

    steps, actors: what Join tells, and the number of actors that it is for; steps 0 for runs that are not synchronous.
    segment: steps of a segment.
    A rollout is complete when all actors have sent their share. Without one of them it never would be: the others then
    take its share as well.
    """

    def __init__(self, steps: int, actors: int, segment: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._actors, self._segment = steps, actors, segment
        self._clock = clock
        self._missed_since: float | None = None
        self.share = 0

    def update(self, present: Collection[str], away: Collection[str] = (), silent: Collection[str] = ()) -> int:
        """The share, from the names of connected actors, of known others and of silent ones. Call once a second."""
        if not self._steps or not present or len(present) >= self._actors:
            if self.share and present:
                _log.info("queue.synchronous: all %d actors are here again", self._actors)
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
                    "queue.synchronous: %d of %d actors are missing%s: the others act %d steps for each policy, "
                    "instead of %d, until they are back",
                    *(self._actors - len(present), self._actors, f" ({names})" if names else "", share, self._steps),
                )
            self.share = share
        return self.share
