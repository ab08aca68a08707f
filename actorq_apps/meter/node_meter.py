"""The meter of a node. Each machine has one meter in its own process, so that its failure never harms a run."""

import math
import operator
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import psutil

from actorq.domain.processes import UNAVAILABLE, NodeEnergy
from actorq_apps.meter.tracker import EnergyTracker, TrackerError, TrackerTotals

# The load model is cubic, and in short intervals the load is mostly 0 or 1. Short intervals would therefore
# overestimate the energy of the same work. codecarbon itself samples once a second.
MINIMUM_INTERVAL_S = 1.0


@dataclass(frozen=True)
class RunStart:
    """Start of a run: Unix seconds, and the machine's busy CPU seconds since boot at that time."""

    at: float
    busy_cpu_seconds: float

    @classmethod
    def now(cls) -> Self:
        """The start of a run that begins now on this machine."""
        return cls(time.time(), machine_busy_cpu_seconds())


class NodeMeter:
    """Reads a tracker and the machine's CPU time together. No method raises after construction."""

    def __init__(
        self,
        node: str,
        start_tracker: Callable[[], EnergyTracker],
        *,
        earlier_s: float = 0.0,
        busy_at_start: float | None = None,
        minimum_interval_s: float = MINIMUM_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        busy_cpu_seconds: Callable[[], float] | None = None,
    ) -> None:
        """Start counting. A machine needs only one meter, because each meter counts the whole machine.

        start_tracker: starts the tracker that measures energy. If it raises, the meter reports why it measures nothing.
        earlier_s: seconds of the run before this call. They count with the mean power up to the first reading.
        busy_at_start: busy CPU seconds of the machine at the start of the run; None if the run starts now.
        minimum_interval_s: a reading that follows sooner repeats the last one.
        clock: monotonic seconds. busy_cpu_seconds: of the machine since any fixed time; by default the kernel's count.
        """
        called = clock()
        self._clock, self._minimum_interval_s = clock, minimum_interval_s
        self._busy = busy_cpu_seconds or machine_busy_cpu_seconds
        self._before = TrackerTotals(0.0, 0.0, 0.0, 0.0)
        self._estimate = ""
        self._read_at = -math.inf
        self._reading = NodeEnergy(node, 0.0, 0.0, 0.0, 0.0, 0.0, f"{UNAVAILABLE}: not measured yet")
        self._tracker: EnergyTracker | None = None
        try:
            tracker = start_tracker()
            self._busy_at_start = self._busy() if busy_at_start is None else busy_at_start
            self._tracker = tracker
        except Exception as error:
            self._fail(error)
        self._started = clock()
        self._earlier_s = 0.0 if busy_at_start is None else earlier_s + self._started - called

    def read(self) -> NodeEnergy:
        """The machine's use since the meter started, plus the run's earlier time.

        Counters never decrease. If something fails, the counters stay constant, `method` has the reason, and the next
        reading tries again. Read every 1 to 60 s, because energy counters wrap around within the hour.
        """
        now = self._clock()
        if self._tracker is not None and now - self._read_at >= self._minimum_interval_s:
            self._read_at = now
            try:
                self._measure(self._tracker, now - self._started)
            except Exception as error:  # The meter continues after a tracker's failure.
                self._fail(error)
        return self._reading

    def _measure(self, tracker: EnergyTracker, seconds: float) -> None:
        measured, busy = tracker.read(), self._busy() - self._busy_at_start
        if not all(map(math.isfinite, measured)):
            raise TrackerError(f"expected finite energies, got {measured}")
        if self._earlier_s > 0 and seconds > 0:
            self._before = TrackerTotals(*(total * self._earlier_s / seconds for total in measured))
            self._estimate = f"; the first {self._earlier_s:.1f} s at the mean power of the {seconds:.1f} s after them"
            self._earlier_s = 0.0
        now = TrackerTotals(*map(operator.add, measured, self._before))._asdict() | {"busy_cpu_seconds": busy}
        grown: dict[str, Any] = {name: max(value, getattr(self._reading, name)) for name, value in now.items()}
        method = tracker.method + self._estimate
        self._reading = replace(self._reading, **grown, method=method, tdp_watts=tracker.tdp_watts)

    def _fail(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            reason = f"codecarbon cannot be imported ({error})"
        elif isinstance(error, TrackerError):
            reason = str(error)
        self._reading = replace(self._reading, method=f"{UNAVAILABLE}: {reason}", tdp_watts=None)

    def close(self) -> None:
        """Stop measuring. Later readings repeat the last one."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            with suppress(Exception):  # The tracker has stopped either way.
                tracker.close()


def machine_busy_cpu_seconds() -> float:
    """Busy CPU seconds since boot of this machine, over all cores.

    Not counted: idle time, waits for disks, time stolen by a hypervisor (this machine did not run then), and guest
    time, which Linux already counts as user time.
    """
    times = psutil.cpu_times()
    without = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in without))
