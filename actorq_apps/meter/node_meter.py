"""The meter of a node. Each machine has one, in its own process, so that its failure never harms a run."""

import math
import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import psutil

from actorq.domain.processes import UNAVAILABLE, NodeEnergy
from actorq_apps.meter.tracker import EnergyTracker, TrackerError, TrackerTotals

_NOTHING = TrackerTotals(cpu_kwh=0.0, ram_kwh=0.0, gpu_kwh=0.0, co2_kg=0.0)
# The load model is cubic, and in short intervals the load is mostly all or nothing. Such intervals would overestimate
# the energy of the same work. codecarbon itself samples once a second.
_MINIMUM_INTERVAL_S = 1.0


@dataclass(frozen=True)
class RunStart:
    """Start of a run: Unix seconds, and the machine's busy CPU seconds since boot at that time."""

    at: float
    busy_cpu_seconds: float

    @classmethod
    def now(cls) -> Self:
        """The start of a run that begins now on this machine."""
        return cls(time.time(), machine_busy_cpu_seconds())


@dataclass(frozen=True)
class Earlier:
    """The time of a run before its meter started."""

    seconds: float
    """Time from the start of the run to the start of the meter."""
    busy_cpu_seconds: float
    """Busy CPU seconds of the machine at the start of the run, since the same fixed time as the meter's."""


class NodeMeter:
    """Reads a tracker and the machine's CPU time together. No method raises after construction."""

    def __init__(
        self,
        node: str,
        start_tracker: Callable[[], EnergyTracker],
        *,
        earlier: Earlier | None = None,
        minimum_interval_s: float = _MINIMUM_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        busy_cpu_seconds: Callable[[], float] | None = None,
    ) -> None:
        """Start counting. A machine needs only one meter, because each counts the whole machine.

        node: the machine's name, not empty.
        start_tracker: starts what measures the energy. If it raises, the meter reports why it measures nothing.
        earlier: time before this call to add at the mean power up to the first reading, which `wait_s` delays.
        minimum_interval_s: readings closer than this repeat the last one.
        clock: monotonic seconds.
        busy_cpu_seconds: busy CPU seconds of the machine since any fixed time; by default the kernel's.
        """
        called = clock()
        self._node = node
        self._tracker: EnergyTracker | None = None
        self._unavailable = ""
        try:
            self._tracker = start_tracker()
        except ImportError as error:
            self._unavailable = f"codecarbon cannot be imported ({error})"
        except Exception as error:  # Whatever goes wrong in there must not cost the run its meter's CPU counts.
            self._unavailable = _in_words(error)
        self._minimum_interval_s = minimum_interval_s
        self._clock = clock
        self._busy = busy_cpu_seconds or machine_busy_cpu_seconds
        self._totals = _NOTHING
        self._busy_seconds = 0.0
        self._busy_at_start = earlier.busy_cpu_seconds if earlier else self._sum_of_busy_seconds()
        self._started = clock()
        self._earlier_s = earlier.seconds + self._started - called if earlier else 0.0
        self._before = _NOTHING
        self._estimate = ""
        self._read_at: float | None = None
        self._reading = self._compose()

    @property
    def wait_s(self) -> float:
        """Seconds until a first reading has measured long enough to tell the power."""
        return max(0.0, self._started + self._minimum_interval_s - self._clock()) if self._tracker else 0.0

    def read(self) -> NodeEnergy:
        """The machine's use since the meter started, and in the earlier time of the run.

        Every counter only grows. If the tracker fails, the energies stay constant, the method tells the reason, and the
        next reading tries again. Read every 1 to 60 s: energy counters wrap around within the hour.
        """
        now = self._clock()
        if self._read_at is not None and now - self._read_at < self._minimum_interval_s:
            return self._reading
        self._read_at = now
        if self._tracker is not None:
            try:
                measured = self._tracker.read()
                if self._earlier_s > 0 and now > self._started:
                    self._estimate_earlier(measured, now - self._started)
                self._totals = _grown(self._totals, _sum(self._before, measured))
                self._unavailable = ""
            except Exception as error:  # A meter outlives its tracker.
                self._unavailable = _in_words(error)
        busy = self._sum_of_busy_seconds()
        if busy is not None and self._busy_at_start is not None:
            self._busy_seconds = max(self._busy_seconds, busy - self._busy_at_start)
        self._reading = self._compose()
        return self._reading

    def close(self) -> None:
        """Stop measuring. Later readings repeat the last one."""
        tracker, self._tracker = self._tracker, None
        self._unavailable = self._unavailable or "the meter is closed"
        if tracker is not None:
            try:
                tracker.close()
            except Exception as error:  # The tracker has stopped either way.
                self._unavailable = _in_words(error)

    def _compose(self) -> NodeEnergy:
        method, tdp = f"{UNAVAILABLE}: {self._unavailable}", None
        if self._tracker is not None and not self._unavailable:
            method, tdp = self._tracker.method + self._estimate, self._tracker.tdp_watts
        return NodeEnergy(
            node=self._node, **self._totals._asdict(), busy_cpu_seconds=self._busy_seconds, method=method, tdp_watts=tdp
        )

    def _estimate_earlier(self, measured: TrackerTotals, seconds: float) -> None:
        """Add the run's time before the meter, at the mean power of the `seconds` measured so far."""
        self._before = TrackerTotals(*(total * self._earlier_s / seconds for total in measured))
        self._estimate = f"; the first {self._earlier_s:.1f} s at the mean power of the {seconds:.1f} s after them"
        self._earlier_s = 0.0

    def _sum_of_busy_seconds(self) -> float | None:
        try:
            return self._busy()
        except Exception:  # Without the denominator nothing can be shared, but the node's total remains valid.
            return None


def machine_busy_cpu_seconds() -> float:
    """Busy CPU seconds since boot of this machine, over all cores.

    Not counted: idle time, waits for disks, time stolen by a hypervisor (nothing here ran in it), and guest time, which
    Linux already counts as user time.
    """
    times = psutil.cpu_times()
    without = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in without))


def _grown(last: TrackerTotals, new: TrackerTotals) -> TrackerTotals:
    """`new`, but never below `last`. Raises TrackerError when a figure is not finite."""
    if not all(map(math.isfinite, new)):
        raise TrackerError(f"expected finite energies, got {new}")
    return TrackerTotals(*map(max, last, new))


def _sum(one: TrackerTotals, other: TrackerTotals) -> TrackerTotals:
    return TrackerTotals(*map(operator.add, one, other))


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, TrackerError) else f"{type(error).__name__}: {error}"
