"""The retry loop: opens a long stream again after each failure, with exponential backoff and jitter."""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from actorq.errors import ActorQError, ExhaustedError, UnavailableError

_log = logging.getLogger(__name__)

# Seconds during which the same error is not logged again.
_QUIET_S = 60.0
# Seconds that a peer may be away without a warning. The first is for a peer that has never answered, because services
# start together and a busy machine is slow. The second is for later.
_STARTING_S, _AWAY_S = 15.0, 2.0


@dataclass(frozen=True)
class Backoff:
    """Seconds between attempts. They double from `initial_s` to `maximum_s`. Jitter uses the upper half of each delay.

    In the first `eager_s` seconds without the peer, no delay exceeds `eager_maximum_s`. A peer that starts or moves
    returns within that time, and its clients find it at once.
    """

    initial_s: float = 0.1
    maximum_s: float = 5.0
    eager_s: float = 30.0
    eager_maximum_s: float = 0.5

    def delay(self, failures: int, rng: random.Random, away_s: float = math.inf) -> float:
        """Seconds to wait after `failures` successive failures (1 or more). The first was `away_s` seconds ago."""
        longest = min(self.maximum_s, self.eager_maximum_s) if away_s < self.eager_s else self.maximum_s
        ceiling = min(longest, self.initial_s * 2.0 ** min(failures - 1, 30))
        return ceiling * rng.uniform(0.5, 1.0)


def keep_connected(
    connect: Callable[[Callable[[], None]], None],
    stop: threading.Event,
    peer: str,
    rng: random.Random,
    backoff: Backoff | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_retry: Callable[[], None] = lambda: None,
    retried: tuple[type[ActorQError], ...] = (UnavailableError, ExhaustedError),
) -> None:
    """Call `connect(connected)` until it returns or `stop` is set. Errors in `retried` lead to another attempt.

    `connect` opens one stream and uses it until it breaks. It calls `connected()` once the peer has answered, which
    resets the backoff. All other errors are raised, because another attempt would not help.

    The same error is logged at most once a minute, because a pod may wait for days. The end of a working stream gives
    no warning, because servers with TLS end connections regularly. An absent peer gives one after two seconds, or after
    15 seconds if it has never answered.

    `on_retry` is called before each retry. A full service raises ExhaustedError, and may have room later.
    """
    backoff = backoff or Backoff()
    failures = 0
    away_since = 0.0
    worked = known = False
    logged: dict[int, tuple[str, float]] = {}

    def connected() -> None:
        nonlocal failures, worked, known
        if failures:
            _log.info("%s: connected again after %d attempts", peer, failures)
        failures, worked, known = 0, True, True

    while not stop.is_set():
        try:
            connect(connected)
            return
        except retried as error:
            now = clock()
            away_since = away_since if failures else now
            failures += 1
            if not stop.is_set():
                on_retry()
            delay = backoff.delay(failures, rng, now - away_since)
            patience = _AWAY_S if known else _STARTING_S
            is_patient = isinstance(error.__cause__, grpc.RpcError) and now - away_since < patience
            level, worked = logging.INFO if worked or is_patient else logging.WARNING, False
            text, when = logged.get(level, ("", 0.0))
            if not stop.is_set() and (text != str(error) or now - when >= _QUIET_S):
                _log.log(level, "%s; trying again, at least every %.1f s", error, backoff.maximum_s)
                logged[level] = (str(error), now)
            stop.wait(delay)
