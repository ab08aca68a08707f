"""Ends the process when a call hangs, so that the launcher or Kubernetes restarts it.

A process cannot interrupt its own hanging call, or release the resources that the call holds.
"""

import ctypes
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from actorq.process import EXIT_HUNG

_log = logging.getLogger(__name__)

# Written to the descriptor itself, because a hanging thread may hold the lock of `sys.stderr`.
_STDERR = 2
# Time for the dump, which precedes the exit.
_DUMP_S = 1.0
# Of <signal.h>, on Linux.
_SIGEV_THREAD = 2


class Watched:
    """Records when its thread entered a call: `with watched: environments.step(...)`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.since: float | None = None

    def __enter__(self) -> None:
        self.since = self._clock()

    def __exit__(self, *_: object) -> None:
        self.since = None


class Guard(Protocol):
    """Checks whether calls hang."""

    def watch(self) -> Watched:
        """A context for one thread; the thread enters it around each call that may hang."""

    def start(self) -> None:
        """Start checking."""

    def close(self) -> None:
        """Stop checking."""


class Watchdog:
    """Checks from its own thread whether a watched call takes longer than `limit_s` seconds.

    Hanging native code may hold Python's lock, and then this thread cannot run. Two mechanisms without locks act at
    twice the limit. faulthandler prints where the threads are, and a timer ends the process with the same exit code. A
    process that was stopped (SIGSTOP) for that long also ends when it continues. The timer exists only on Linux.
    Elsewhere faulthandler ends the process with exit code 1.

    what, setting: names of the watched call's owner and of the limit's setting, for the log.
    end: ends the process; tests replace it.
    """

    def __init__(
        self,
        what: str,
        setting: str,
        limit_s: float,
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
        self._timer: _ExitTimer | None = None
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def watch(self) -> Watched:
        """See `Guard`."""
        watched = Watched(self._clock)
        self._watched.append(watched)
        return watched

    def start(self) -> None:
        """Start checking."""
        if sys.platform == "linux":
            self._timer = _ExitTimer(EXIT_HUNG)
        self._arm()
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """End the process if a watched call takes too long."""
        now = self._clock()
        # Read once, because the watched thread may change it.
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
                self.check()
        finally:
            faulthandler.cancel_dump_traceback_later()
            if self._timer is not None:
                self._timer.close()

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(2 * self._limit_s, exit=self._timer is None, file=_STDERR)
        if self._timer is not None:
            self._timer.set(2 * self._limit_s + _DUMP_S)


class _SignalEvent(ctypes.Structure):
    """`struct sigevent` of 64-bit Linux: at an event, a new thread calls `function(value)`."""

    _fields_ = (
        ("value", ctypes.c_int64),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_byte * 32),
    )


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class _ExitTimer:
    """A timer of the C library. When it expires, a thread outside Python calls `_exit(code)`.

    It uses CLOCK_MONOTONIC, which stops while the machine is suspended. Raises OSError.
    """

    def __init__(self, code: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        function = ctypes.cast(self._libc._exit, ctypes.c_void_p)
        event = _SignalEvent(value=code, notify=_SIGEV_THREAD, function=function)
        self._check(self._libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))

    def set(self, seconds: float) -> None:
        """Expire after `seconds`. Replaces an earlier deadline."""
        whole, part = divmod(seconds, 1)
        # With an interval, the timer tries again if no thread could be started.
        spec = _TimerSpec(interval_s=1, value_s=int(whole), value_ns=int(part * 1e9))
        self._check(self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None))

    def close(self) -> None:
        """Never expire."""
        self._check(self._libc.timer_delete(self._timer))

    def _check(self, result: int) -> None:
        if result:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
