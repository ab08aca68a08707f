"""When a process that died is started again, and when it has died too often."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actorq.transport.reconnect import Backoff

_BACKOFF = Backoff(initial_s=0.2, maximum_s=10.0)


@dataclass(frozen=True)
class RestartPolicy:
    """At most `limit` restarts within `window_s` seconds, further and further apart."""

    limit: int = 10
    window_s: float = 300.0
    backoff: Backoff = _BACKOFF


# The meter is a witness: a run goes on without it.
METER_POLICY = RestartPolicy(limit=3, window_s=float("inf"))


class RestartHistory:
    """The restarts of one process."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float], rng: random.Random) -> None:
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._recent: deque[float] = deque()
        self.total = 0

    def next_delay(self) -> float | None:
        """Count a restart and return the seconds to wait before it; None when the process has died too often."""
        now = self._clock()
        while self._recent and now - self._recent[0] > self._policy.window_s:
            self._recent.popleft()
        if len(self._recent) >= self._policy.limit:
            return None
        self._recent.append(now)
        self.total += 1
        return self._policy.backoff.delay(len(self._recent), self._rng)
