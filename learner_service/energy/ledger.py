"""The run's energy account: divides the energy of whole machines among the services of the run."""

import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from actorq.domain.processes import UNAVAILABLE, Amount, NodeEnergy, ProcessStats
from actorq.errors import ExhaustedError
from actorq.text import one_line

_VERSION = 2
# Bounds of the tables, for any names. The limit of processes is above the largest number of actors. Above it, the
# processes with the oldest reports are forgotten. Nodes above the limit without a reading are dropped. Further roles
# are not accounted for.
_MOST_PROCESSES, _MOST_NODES, _MOST_ROLES = 32_768, 1000, 16
_MOST_METHOD_BYTES = 1000
# Part of the unclaimed energy that is kept from one reading to the next. Late reports claim it.
_CARRIED = 31 / 32
NO_METER = f"{UNAVAILABLE}: no meter has reported"

_log = logging.getLogger(__name__)


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
            # There is no measurement between the two lives. CPU time of that gap must not claim other energy.
            self.claims.clear()
        return charged

    def expected(self, now: float, began: float) -> Counters:
        """The present counters, extrapolated from the last two readings.

        With one reading, extrapolated from `began` and that reading. Otherwise the last reading.
        """
        if len(self.readings) < (2 if self.previous_meter else 1):
            return self.last
        *before, (then, newest) = self.readings
        since, oldest = before[0] if before else (began, Counters())
        share = (now - then) / (then - since) if since < then < now else 0.0
        return Counters(*(new + share * (new - old) for old, new in zip(oldest, newest, strict=True)))

    def settle(self, counters: Counters) -> dict[str, Amount]:
        """The roles' new energy up to a reading. Energy is never invented.

        Claims beyond the busy time of this reading belong to earlier work that was reported late. They get spare energy
        of earlier readings. Claims without energy are dropped. No role gets the energy of idle processors.
        """
        # The account keeps the maximum of each counter, so that an older reading adds nothing.
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


class EnergyLedger:
    """Shares the energy of machines out to the roles of a run's processes, by CPU time.

    Between two readings of a node's meter the processes of a role get

        d_node_kwh * d_role_cpu / max(d_node_busy_cpu, sum of d_role_cpu on that node)

    The rest of the energy is not the run's. A role thus also pays for its share of idle power and of the memory's
    power. The run pays nothing for a machine without its processes. Process reports only accumulate; a meter's reading
    settles them.

    The energy of accelerators does not depend on CPU time. If roles use accelerators on a node, they share this energy
    in equal parts. Otherwise it is shared like other energy.

    Reports may come late, twice or out of order. Totals never fall, and survive restarts of processes, of meters
    and (through `state`) of the learner. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._services: dict[str, Amount] = {}
        self._nodes: dict[str, NodeAccount] = {}
        self._cpu_seconds: dict[tuple[str, str, str], float] = {}
        """Last CPU seconds by role, name and incarnation. The oldest reports come first."""

    def report_process(self, stats: ProcessStats, uses_gpu: bool = False) -> None:
        """Record a process's CPU time, for its node's next reading. uses_gpu: it computes on accelerators."""
        key, role = (stats.role, stats.name, stats.incarnation), stats.role
        with self._lock:
            known = role in self._services or len(self._services) < _MOST_ROLES
            node = self._node(stats.node) if known else None
            if node is None:
                return
            before = self._cpu_seconds.pop(key, 0.0)
            self._cpu_seconds[key] = max(before, stats.cpu_seconds)
            if len(self._cpu_seconds) > _MOST_PROCESSES:
                del self._cpu_seconds[next(iter(self._cpu_seconds))]
            self._services.setdefault(role, Amount())
            if stats.cpu_seconds > before:
                node.claims[role] = node.claims.get(role, 0.0) + stats.cpu_seconds - before
            if uses_gpu:
                node.gpu_roles.add(role)

    def report_node(self, reading: NodeEnergy, *, meter: str) -> None:
        """Record a meter's cumulative reading, and charge the node's processes for the time since the last reading.

        meter: identifies one life of the node's meter, as in `ProcessStats.incarnation`.
        Raises ExhaustedError, and changes nothing, when there are too many machines with meters.
        """
        with self._lock:
            node = self._node(reading.node)
            if node is None:
                raise ExhaustedError(f"energy: expected at most {_MOST_NODES} nodes with meters, got another")
            self._charge(node.record(reading, meter, self._clock()))

    def estimate_to_now(self, elapsed_s: float) -> None:
        """Add the energy since each meter's last reading, extrapolated from the time before that reading.

        A run ends between two readings. A later reading adds only the excess over the estimate.
        elapsed_s: seconds since the start of the run, which is the start of the counters of a meter with one reading.
        """
        with self._lock:
            now = self._clock()
            for node in self._nodes.values():
                self._charge(node.settle(node.expected(now, now - elapsed_s)))

    def services(self) -> dict[str, Amount]:
        """The run's energy by role: learner, quantizer, actor and others."""
        with self._lock:
            return self._services.copy()

    def method(self) -> str:
        """The method of measurement, on one line. Nodes are named only if they differ."""
        with self._lock:
            methods = {name: node.method for name, node in self._nodes.items()}
        if len(set(methods.values())) <= 1:
            return next(iter(methods.values()), NO_METER)
        return one_line(" | ".join(f"{node}: {method}" for node, method in sorted(methods.items())), _MOST_METHOD_BYTES)

    def state(self) -> dict[str, Any]:
        """The account as JSON-able values, for the learner's checkpoint."""
        with self._lock:
            return {
                "version": _VERSION,
                "services": {role: [amount.kwh, amount.co2_kg] for role, amount in self._services.items()},
                "processes": [[*key, seconds] for key, seconds in self._cpu_seconds.items()],
                "nodes": {name: node.state() for name, node in self._nodes.items()},
            }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A ledger that continues from `state`. Begins a new account, and logs it, if the state has another form."""
        ledger = cls()
        try:
            if state["version"] != _VERSION:
                raise ValueError(f"expected version {_VERSION}, got {state['version']}")
            ledger._services = {role: Amount(*amount) for role, amount in state["services"].items()}
            ledger._cpu_seconds = {(role, name, life): seconds for role, name, life, seconds in state["processes"]}
            ledger._nodes = {name: NodeAccount.from_state(values) for name, values in state["nodes"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.warning("the stored energy account cannot be read (%s): a new one begins", error)
            return cls()
        return ledger

    def _charge(self, amounts: Mapping[str, Amount]) -> None:
        for role, amount in amounts.items():
            self._services[role] += amount

    def _node(self, name: str) -> NodeAccount | None:
        """The account of a node; None without room for it. Makes room if possible."""
        if name not in self._nodes and len(self._nodes) >= _MOST_NODES:
            silent = next((known for known, node in self._nodes.items() if not node.meter), None)
            if silent is None:
                return None
            del self._nodes[silent]
        return self._nodes.setdefault(name, NodeAccount())
