"""The ledger's accounts of processes and nodes: the last counters and the totals."""

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from actorq.domain.processes import UNAVAILABLE, Amount, NodeEnergy
from learner_service.energy.sharing import Interval

LOOK_BACK = 32
"""Intervals of a meter that late process reports can still claim."""

REMEMBERED_LIVES = 4
"""Number of incarnations per process whose late reports are recognized as old."""

_COUNTERS = ("cpu_kwh", "ram_kwh", "gpu_kwh", "co2_kg", "busy_cpu_seconds")


class ProcessKey(NamedTuple):
    """Identifies a process across its restarts."""

    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"


@dataclass
class ProcessAccount:
    """A process over all its incarnations."""

    energy: Amount = field(default_factory=Amount)
    cpu_seconds: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)
    """CPU seconds last seen of each incarnation, oldest incarnation first."""

    def add(self, other: "ProcessAccount") -> None:
        """Add the use of another process."""
        energy = self.energy
        self.energy = Amount(_sum(energy.kwh, other.energy.kwh), _sum(energy.co2_kg, other.energy.co2_kg))
        self.cpu_seconds = _sum(self.cpu_seconds, other.cpu_seconds)

    def take(self, incarnation: str, cpu_seconds: float) -> float:
        """Record a cumulative report. Returns the new CPU seconds, 0 for a late report."""
        last = self.seen.get(incarnation, 0.0)
        fresh = max(cpu_seconds - last, 0.0)
        self.seen[incarnation] = last + fresh
        while len(self.seen) > REMEMBERED_LIVES:
            del self.seen[next(iter(self.seen))]
        self.cpu_seconds += fresh
        return fresh


def _sum(one: float, other: float) -> float:
    """Sum, rounded up, so that totals do not fall when accounts are merged."""
    return math.nextafter(one + other, math.inf) if one and other else one + other


class Counters(NamedTuple):
    """Cumulative counters of a meter."""

    shared_kwh: float = 0.0
    """Energy of processors and memory."""
    gpu_kwh: float = 0.0
    co2_kg: float = 0.0
    busy_seconds: float = 0.0


@dataclass
class NodeAccount:
    """A machine over all lives of its meter."""

    method: str = f"{UNAVAILABLE}: no meter has reported"
    meter: str = ""
    """The life of the meter that `last` belongs to; empty before the first reading."""
    last: Counters = field(default_factory=Counters)
    previous_meter: str = ""
    total: Amount = field(default_factory=Amount)
    charged: Amount = field(default_factory=Amount)
    """The part of the total that processes of the run were charged for. Only the state has it."""
    intervals: deque[Interval] = field(default_factory=lambda: deque(maxlen=LOOK_BACK))
    """Newest first."""
    unsettled_cpu: dict[ProcessKey, float] = field(default_factory=dict)
    """CPU seconds reported since the last reading."""
    gpu_users: set[ProcessKey] = field(default_factory=set)
    newest: tuple[float, NodeEnergy] | None = None
    """The newest reading of this life of the meter and its time in the ledger's seconds. Not part of the state."""
    before_newest: tuple[float, NodeEnergy] | None = None

    def add_cpu(self, key: ProcessKey, cpu_seconds: float) -> None:
        """Add CPU seconds to charge at the next reading."""
        self.unsettled_cpu[key] = self.unsettled_cpu.get(key, 0.0) + cpu_seconds

    def note(self, reading: NodeEnergy, now: float) -> None:
        """Record the time of a reading, unless it repeats the one before."""
        if self.newest is None or reading.busy_cpu_seconds > self.newest[1].busy_cpu_seconds:
            self.before_newest, self.newest = self.newest, (now, reading)

    def expected(self, now: float, began: float) -> NodeEnergy | None:
        """The meter's reading now, extrapolated from its last two readings; None without readings.

        began: start of its counters, used if there is only one reading.
        """
        if self.newest is None or self.previous_meter:
            return None
        then, reading = self.newest
        since, before = self.before_newest or (began, None)
        if not since < then < now:
            return None
        share = (now - then) / (then - since)

        def later(name: str) -> Any:
            value = getattr(reading, name)
            return value + share * (value - (getattr(before, name) if before else 0.0))

        return replace(reading, **{name: later(name) for name in _COUNTERS})

    def take(self, reading: NodeEnergy, meter: str) -> tuple[Interval, Amount]:
        """Record a cumulative reading.

        Returns the new energy: the interval to share by CPU time (processors and memory), and the accelerators' part.
        """
        if meter == self.previous_meter:
            # A late reading of a replaced meter: its time is already settled.
            return Interval(Amount(), 0.0), Amount()
        if meter != self.meter:
            # Nobody measured between the two lives. CPU time of that gap must not claim earlier intervals.
            self.intervals.clear()
            self.previous_meter, self.meter, self.last = self.meter, meter, Counters()
            self.newest = self.before_newest = None
        self.method = reading.method
        now = Counters(reading.cpu_kwh + reading.ram_kwh, reading.gpu_kwh, reading.co2_kg, reading.busy_cpu_seconds)
        # The maximum of each field, so that a reading older than the last adds nothing.
        now = Counters(*map(max, now, self.last))
        new = Counters(*(counter - before for counter, before in zip(now, self.last, strict=True)))
        self.last = now
        everything = Amount(new.shared_kwh + new.gpu_kwh, new.co2_kg)
        self.total += everything
        gpu_part = new.gpu_kwh / everything.kwh if everything.kwh > 0 else 0.0
        gpu = Amount(new.gpu_kwh, new.co2_kg * gpu_part)
        shared = Amount(new.shared_kwh, new.co2_kg - gpu.co2_kg)
        return Interval(shared, new.busy_seconds), gpu
