"""A machine in the energy account: what its meter has counted, and what services claim of it."""

import operator
from collections import deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from actorq.domain.processes import UNAVAILABLE, Amount, NodeEnergy

NO_METER = f"{UNAVAILABLE}: no meter has reported"

_CARRIED = 31 / 32
"""Part of the unclaimed energy that is carried from one reading to the next. Late reports claim it."""


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

    method: str = NO_METER
    meter: str = ""
    """The life of the meter that `last` belongs to; empty before the first reading."""
    previous_meter: str = ""
    last: Counters = field(default_factory=Counters)
    spare_kwh: float = 0.0
    """Unclaimed energy of earlier readings."""
    spare_seconds: float = 0.0
    """The busy CPU seconds of that energy."""
    claims: dict[str, float] = field(default_factory=dict)
    """CPU seconds of each role since the last reading."""
    gpu_roles: set[str] = field(default_factory=set)
    """Roles that compute on accelerators here. Not part of the state."""
    readings: deque[tuple[float, Counters]] = field(default_factory=lambda: deque(maxlen=2))
    """The last two readings of this life of the meter, and their times. Not part of the state."""

    def record(self, reading: NodeEnergy, meter: str, now: float) -> dict[str, Amount]:
        """Record a meter's reading. Returns the roles' new energy."""
        if meter == self.previous_meter:
            # A late reading of a replaced meter: its time is already settled.
            return {}
        begins = meter != self.meter
        if begins:
            self.previous_meter, self.meter, self.last = self.meter, meter, Counters()
            self.spare_kwh = self.spare_seconds = 0.0
            self.readings.clear()
        self.method = reading.method
        energies = reading.cpu_kwh + reading.ram_kwh, reading.gpu_kwh, reading.co2_kg
        counters = Counters(*energies, reading.busy_cpu_seconds)
        if not self.readings or counters.busy_seconds > self.readings[-1][1].busy_seconds:
            self.readings.append((now, counters))
        charged = self.settle(counters)
        if begins:
            # Nobody measured between the two lives. CPU time of that gap must not claim other energy.
            self.claims.clear()
        return charged

    def expected(self, now: float, began: float) -> Counters:
        """The counters now, extrapolated from the last two readings, or from `began` and one; else the last."""
        if len(self.readings) < (2 if self.previous_meter else 1):
            return self.last
        *before, (then, newest) = self.readings
        since, oldest = before[0] if before else (began, Counters())
        share = (now - then) / (then - since) if since < then < now else 0.0
        return Counters(*(new + share * (new - old) for old, new in zip(oldest, newest, strict=True)))

    def settle(self, counters: Counters) -> dict[str, Amount]:
        """The roles' new energy up to a reading. Energy is never invented.

        Claims beyond the busy time of this reading were used earlier and reported late. They get spare energy of
        earlier readings. Claims without energy are dropped. The energy of idle processors is nobody's.
        """
        # The maximum of each counter, so that a reading older than the last adds nothing.
        counters = Counters(*map(max, counters, self.last))
        shared, gpu, _, busy = map(operator.sub, counters, self.last)
        self.last = counters
        if not self.gpu_roles:
            shared, gpu = shared + gpu, 0.0
        charged = {role: gpu / len(self.gpu_roles) for role in self.gpu_roles}
        if busy > 0:
            claimed = sum(self.claims.values())
            now = min(claimed, busy)
            late = min(claimed - now, self.spare_seconds)
            kwh = shared * (now / busy)
            late_kwh = self.spare_kwh * (late / self.spare_seconds) if late > 0 else 0.0
            self.spare_kwh = _CARRIED * (self.spare_kwh - late_kwh + shared - kwh)
            self.spare_seconds = _CARRIED * (self.spare_seconds - late + busy - now)
            for role, seconds in self.claims.items():
                charged[role] = charged.get(role, 0.0) + (kwh + late_kwh) * (seconds / claimed)
            self.claims.clear()
        everything = counters.shared_kwh + counters.gpu_kwh
        co2_per_kwh = counters.co2_kg / everything if everything > 0 else 0.0
        return {role: Amount(kwh, kwh * co2_per_kwh) for role, kwh in charged.items()}

    def state(self) -> dict[str, Any]:
        """The account as JSON-able values."""
        return {name: copy(value) for name, value in vars(self).items() if name not in ("gpu_roles", "readings")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """An account that continues from `state`."""
        return cls(**{**state, "last": Counters(*state["last"]), "claims": dict(state["claims"])})
