"""The one retry loop: a long stream is opened again and again, with capped exponential backoff and jitter."""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from actorq.errors import UnavailableError

_log = logging.getLogger(__name__)

# For which the same error is not logged again.
_QUIET_S = 60.0


@dataclass(frozen=True)
class Backoff:
    """Seconds between attempts: doubling from `initial_s` to `maximum_s`, each drawn from its upper half."""

    initial_s: float = 0.1
    maximum_s: float = 5.0

    def delay(self, failures: int, rng: random.Random) -> float:
        """Seconds to wait after so many failures in a row (1 or more)."""
        ceiling = min(self.maximum_s, self.initial_s * 2.0 ** min(failures - 1, 30))
        return ceiling * rng.uniform(0.5, 1.0)


def keep_connected(
    connect: Callable[[Callable[[], None]], None],
    stop: threading.Event,
    peer: str,
    rng: random.Random,
    backoff: Backoff | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_retry: Callable[[], None] = lambda: None,
) -> None:
    """Call `connect(connected)` until it returns or `stop` is set; an UnavailableError from it is tried again.

    `connect` opens one stream and works on it until it breaks. It calls `connected()` once the peer has answered,
    which resets the backoff. All other errors are raised to the caller: trying again would not mend them. The same
    error is logged once a minute: a pod may wait for days for a run that is over to go on.
    `on_retry` is called for each of them.
    """
    backoff = backoff or Backoff()
    failures = 0
    told: dict[str, float] = {}

    def connected() -> None:
        nonlocal failures
        if failures:
            _log.info("%s: connected again after %d attempts", peer, failures)
        failures = 0

    while not stop.is_set():
        try:
            connect(connected)
            return
        except UnavailableError as error:
            failures += 1
            on_retry()
            delay = backoff.delay(failures, rng)
            now = clock()
            if not stop.is_set() and now - told.get(str(error), -_QUIET_S) >= _QUIET_S:
                _log.warning("%s; trying again, at least every %.1f s", error, backoff.maximum_s)
                told = {str(error): now}
            stop.wait(delay)
