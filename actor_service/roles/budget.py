"""How much of a machine's CPU time may go into evaluations."""

import os
import threading
import time
from collections.abc import Callable

# What an evaluator may take at once, at first and after it has waited: short runs are evaluated as often as they ask.
_AT_ONCE_S = 5.0


class CpuBudget:
    """The CPU seconds that this process may take: a share of the machine's, saved up to 5 s. Thread-safe.

    What is begun within the budget may end beyond it, and is paid for before the next begins. So over T seconds on C
    processors the process takes at most share * C * T, 5 s, and what it began last.

    share: above 0 to 1.
    processors: of the machine.
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
        self._saved, self._seen = _AT_ONCE_S, (clock(), cpu_clock())

    def has_some(self) -> bool:
        """Whether anything of it is left."""
        with self._lock:
            now, spent = self._clock(), self._cpu_clock()
            (then, spent_before), self._seen = self._seen, (now, spent)
            self._saved = min(_AT_ONCE_S, self._saved + self._rate * (now - then)) - (spent - spent_before)
            return self._saved > 0
