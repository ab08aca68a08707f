"""The one retry loop: a long stream is opened again and again, with capped exponential backoff and jitter."""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from actorq.errors import UnavailableError

_log = logging.getLogger(__name__)


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
) -> None:
    """Call `connect(connected)` until it returns or `stop` is set; an UnavailableError from it is tried again.

    `connect` opens one stream and works on it until it breaks. It calls `connected()` once the peer has answered,
    which resets the backoff. All other errors are raised to the caller: trying again would not mend them.
    """
    backoff = backoff or Backoff()
    failures = 0

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
            delay = backoff.delay(failures, rng)
            if not stop.is_set():
                _log.warning("%s; trying again in %.1f s (attempt %d)", error, delay, failures + 1)
            stop.wait(delay)
