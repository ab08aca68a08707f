"""Limits the share of a machine's CPU time for evaluations."""

import os
import threading
import time
from collections.abc import Callable

# Budget at the start. Short runs thus get their first evaluations.
_AT_START_S = 0.5
_MOST_SAVED_S = 5.0


class CpuBudget:
    """The CPU seconds that this process may use: 0.5 s and a share of the machine's, saved up to 5 s. Thread-safe.

    Work that begins within the budget may exceed it. The excess is paid before the next work begins. Over T seconds on
    C processors the process uses at most share * C * T + 0.5 s, plus the excess of its last work.

    share: above 0, at most 1.
    processors: number of processors of the machine.
    clock: monotonic seconds. cpu_clock: CPU seconds of this process.
    """

    def __init__(
        self,
        share: float,
        processors: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._rate = share * (processors or os.cpu_count() or 1)
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        self._saved, self._seen = _AT_START_S, (clock(), cpu_clock())

    def has_some(self) -> bool:
        """Whether some budget is left."""
        with self._lock:
            now, spent = self._clock(), self._cpu_clock()
            (then, spent_before), self._seen = self._seen, (now, spent)
            self._saved = min(_MOST_SAVED_S, self._saved + self._rate * (now - then)) - (spent - spent_before)
            return self._saved > 0
