"""Ends the process when a call hangs, so that the launcher or Kubernetes restarts it.

A process cannot break off a hanging call of its own, nor release what the call holds.
"""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable

from actorq.process import EXIT_HUNG

_log = logging.getLogger(__name__)

# The descriptor itself: a hanging thread may hold the lock of `sys.stderr`.
_STDERR = 2


class Watched:
    """Records since when its thread has been inside a call: `with watched: environments.step(...)`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.since: float | None = None

    def __enter__(self) -> None:
        self.since = self._clock()

    def __exit__(self, *_: object) -> None:
        self.since = None


class Watchdog:
    """Checks from its own thread whether a watched call takes longer than `limit_s` seconds.

    Hanging native code may keep Python's lock, and then this thread cannot run. In that case faulthandler, which needs
    no lock, ends the process at twice the limit with exit code 1.

    what: name of the watched thing for the log.
    setting: name of the setting of the limit, for the log.
    end: ends the process; tests replace it.
    """

    def __init__(
        self,
        what: str,
        limit_s: float,
        setting: str,
        end: Callable[[int], object] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._limit_s = limit_s
        self._setting = setting
        self._end = end
        self._clock = clock
        self._watched: list[Watched] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def watch(self) -> Watched:
        """A context for one thread; the thread enters it around each call that may hang."""
        watched = Watched(self._clock)
        self._watched.append(watched)
        return watched

    def start(self) -> None:
        """Start checking."""
        self._arm()
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """End the process if a watched call takes too long."""
        now = self._clock()
        # Read once: the watched thread changes it meanwhile.
        waited = max((now - since for each in self._watched if (since := each.since) is not None), default=0.0)
        if waited > self._limit_s:
            _log.critical(
                "%s has not returned from a call for %.0f s: ending this process with exit code %d, to be restarted; "
                "%s sets the limit",
                *(self._what, waited, EXIT_HUNG, self._setting),
            )
            faulthandler.dump_traceback(file=_STDERR)
            logging.shutdown()
            self._end(EXIT_HUNG)

    def _run(self) -> None:
        try:
            while not self._closed.wait(self._limit_s / 4):
                self._arm()
                self.look()
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(2 * self._limit_s, exit=True, file=_STDERR)
