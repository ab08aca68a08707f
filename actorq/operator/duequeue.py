"""A queue of names, each once, each with the time at which somebody should look at it."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MAX_NAMES = 10_000

N = TypeVar("N", bound=Hashable)


class DueQueue(Generic[N]):
    """Names by the time at which they are due. The earliest time of a name counts. Thread-safe.

    A full queue refuses further names. Whoever lists all names from time to time brings them again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, limit: int = MAX_NAMES) -> None:
        self._clock = clock
        self._limit = limit
        self._due: dict[N, float] = {}
        self._changed = threading.Condition()
        self.closed = False

    def put(self, name: N, delay_s: float = 0.0) -> bool:
        """Make a name due after a delay. Returns False when the queue is full."""
        at = self._clock() + delay_s
        with self._changed:
            if name not in self._due and len(self._due) >= self._limit:
                return False
            self._due[name] = min(at, self._due.get(name, at))
            self._changed.notify_all()
        return True

    def take(self, at_most_s: float | None = None) -> N | None:
        """Wait for a due name and remove it; None after `at_most_s` seconds, and when the queue is closed."""
        end = None if at_most_s is None else self._clock() + at_most_s
        with self._changed:
            while not self.closed:
                name, at = min(self._due.items(), key=lambda item: item[1], default=(None, None))
                now = self._clock()
                if name is not None and at is not None and at <= now:
                    del self._due[name]
                    return name
                times = [each - now for each in (at, end) if each is not None]
                if end is not None and end <= now:
                    return None
                self._changed.wait(min(times) if times else None)
        return None

    def close(self) -> None:
        """Let all waiting callers return."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._due)
