"""Decides when to restart a process that died, and when to give up."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actorq.process import EXIT_HUNG
from actorq.transport.reconnect import Backoff

_BACKOFF = Backoff(initial_s=0.2, maximum_s=10.0)


@dataclass(frozen=True)
class RestartPolicy:
    """At most `limit` restarts within `window_s` seconds, with growing delays.

    hung_window_s: the window if every death came from a hanging call, which takes longer than a crash.
    """

    limit: int = 10
    window_s: float = 300.0
    hung_window_s: float = 2700.0
    backoff: Backoff = _BACKOFF


def policy_where_calls_hang(timeout_s: float) -> RestartPolicy:
    """A policy for hanging calls. With each hanging call, the process ends after up to twice `timeout_s` seconds."""
    return RestartPolicy(hung_window_s=30.0 * (timeout_s + 30.0))


# A run can continue without its meter.
METER_POLICY = RestartPolicy(limit=3, window_s=float("inf"))


class RestartHistory:
    """The restarts of one process."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float], rng: random.Random) -> None:
        self._policy, self._clock, self._rng = policy, clock, rng
        self._recent: deque[float] = deque()
        self._hung: deque[float] = deque()
        self.total = 0

    def next_delay(self, code: int = 1) -> float | None:
        """Count a restart after this exit code. Returns the seconds to wait; None after too many deaths."""
        now = self._clock()
        for moments, window_s in ((self._recent, self._policy.window_s), (self._hung, self._policy.hung_window_s)):
            while moments and now - moments[0] > window_s:
                moments.popleft()
            if len(moments) >= self._policy.limit:
                return None
        self._recent.append(now)
        if code == EXIT_HUNG:
            self._hung.append(now)
        self.total += 1
        return self._policy.backoff.delay(len(self._recent), self._rng)
