"""Limits the time spent on expensive answers, for any number of callers."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

# Share of the thread's time, and a burst in seconds. A few callers therefore always get a fresh answer.
_SHARE, _AT_ONCE_S = 0.2, 1.0

T = TypeVar("T")


class Rationed(Generic[T]):
    """Computes answers within a bounded share of one thread's time.

    When the share is used up, callers get the last answer.

    outdated: whether the last answer must not be reused.
    """

    def __init__(
        self,
        make: Callable[[], T],
        outdated: Callable[[T], bool] = lambda last: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make = make
        self._outdated = outdated
        self._clock = clock
        self._last: T | None = None
        self._left_s = _AT_ONCE_S
        self._counted_at = clock()

    def get(self) -> T:
        """A fresh answer, or the last one."""
        now = self._clock()
        self._left_s = min(_AT_ONCE_S, self._left_s + _SHARE * (now - self._counted_at))
        self._counted_at = now
        if self._last is None or self._left_s > 0 or self._outdated(self._last):
            self._last = self._make()
            self._left_s -= self._clock() - now
        return self._last
