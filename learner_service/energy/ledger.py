"""The run's energy account: shares the energy of whole machines out to processes, services and the run."""

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from actorq.domain.processes import UNAVAILABLE, Amount, NodeEnergy
from actorq.errors import ExhaustedError
from actorq.text import one_line
from learner_service.energy.accounts import NodeAccount, ProcessAccount, ProcessKey
from learner_service.energy.ledger_state import decode_state, encode_state
from learner_service.energy.sharing import Interval, share

OTHERS = "(others)"
"""Name of the account in which a role's longest silent processes are merged."""

_DESCRIBED_NODES = 8
_MOST_DESCRIPTION_BYTES = 1000


@dataclass(frozen=True)
class EnergySnapshot:
    """The use of a run so far."""

    kwh: float
    """Energy of the run: the sum of its processes."""
    co2_kg: float
    method: str
    """The method of measurement, for each node if they differ."""
    per_service: Mapping[str, Amount] = field(default_factory=dict)
    """The run's energy by role: learner, quantizer, actor."""
    per_process: Mapping[str, Amount] = field(default_factory=dict)
    """The run's energy by `role/name`."""


@dataclass(frozen=True)
class LedgerLimits:
    """Bounds on the number of accounts in a ledger."""

    processes: int = 2000
    nodes: int = 1000
    roles: int = 16


class EnergyLedger:
    """Shares the energy of machines out to the processes of a run, by CPU time.

    Between two readings of a node's meter a process gets

        d_node_kwh * d_process_cpu / max(d_node_busy_cpu, sum of d_process_cpu on that node)

    The rest is not the run's. So a process also pays for its part of the idle power and of the memory. The
    run pays nothing for a machine without its processes. Process reports only accumulate; a meter's reading settles
    them. CPU seconds beyond the reading's interval claim unclaimed energy of earlier intervals, so that processes may
    report less often than meters (`sharing`).

    The energy of accelerators does not depend on CPU time. If processes on a node use accelerators, these processes
    share all of it in equal parts. Otherwise it is shared like the rest.

    Reports may come late, twice or out of order. Totals never fall, and survive restarts of processes, of meters
    and (through `state`) of the learner. Thread-safe.

    The tables are bounded for any names. If there are too many processes, the longest silent ones share one account
    for each role. If there are too many machines, those without a reading are dropped. A process that still does not
    fit has no account.
    """

    def __init__(self, limits: LedgerLimits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or LedgerLimits()
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeAccount] = {}
        self._processes: dict[ProcessKey, ProcessAccount] = {}
        self._roles: set[str] = set()
        self._gpu_nodes: dict[ProcessKey, str] = {}

    def report_process(
        self, name: str, role: str, node: str, cpu_seconds: float, *, incarnation: str, uses_gpu: bool = False
    ) -> None:
        """Record a process's CPU time. The next reading of its node's meter charges it.

        name: the process's name within its role; the same after a restart.
        role: its service.
        node: its machine, by the name that the meter there uses.
        cpu_seconds: CPU seconds of this incarnation, cumulative from its start.
        incarnation: identifies one life of the process, as in `ProcessStats.incarnation`.
        uses_gpu: whether it computes on the node's accelerators.
        """
        key = ProcessKey(role, name)
        with self._lock:
            if not self._has_room(key, node):
                return
            # Moved to the end, so that the longest silent process is first.
            process = self._processes[key] = self._processes.pop(key) if key in self._processes else ProcessAccount()
            fresh = process.take(incarnation, cpu_seconds)
            self._nodes.setdefault(node, NodeAccount()).add_cpu(key, fresh)
            self._place_on_gpu(key, node if uses_gpu else None)

    def report_node(self, reading: NodeEnergy, *, meter: str) -> None:
        """Record a meter's reading, and charge the node's processes for the time since the last reading.

        reading: cumulative since that meter started.
        meter: identifies one life of the node's meter, as in `ProcessStats.incarnation`.

        Raises ExhaustedError, and changes nothing, when there are too many machines with meters.
        """
        with self._lock:
            if not self._has_room_for_node(reading.node):
                raise ExhaustedError(f"energy: expected at most {self._limits.nodes} nodes with meters, got another")
            node = self._nodes.setdefault(reading.node, NodeAccount())
            self._settle(node, reading, meter)
            node.note(reading, self._clock())

    def estimate_to_now(self, elapsed_s: float) -> None:
        """Add the energy since each meter's last reading, extrapolated from the time before that reading.

        A run ends between two readings. A later reading adds only the excess over the estimate.

        elapsed_s: seconds since the start of the run, which is the start of the counters of a meter with one reading.
        """
        with self._lock:
            now = self._clock()
            for node in self._nodes.values():
                if (reading := node.expected(now, now - elapsed_s)) is not None:
                    self._settle(node, reading, node.meter)

    def _settle(self, node: NodeAccount, reading: NodeEnergy, meter: str) -> None:
        """Charge a node's processes for the time up to a reading."""
        shared, gpu = node.take(reading, meter)
        if node.gpu_users:
            for key in node.gpu_users:
                self._charge(node, key, gpu.scaled(1 / len(node.gpu_users)))
        else:
            shared = Interval(shared.energy + gpu, shared.busy_seconds)
        node.intervals.appendleft(shared)
        for key, amount in share(node.intervals, node.unsettled_cpu).items():
            self._charge(node, key, amount)
        node.unsettled_cpu.clear()

    def snapshot(self) -> EnergySnapshot:
        """The totals of the run, its services and its processes."""
        with self._lock:
            processes, services = dict[str, Amount](), dict[str, list[Amount]]()
            for key, account in self._processes.items():
                processes[str(key)] = account.energy
                services.setdefault(key.role, []).append(account.energy)
            run = _sum(processes.values())
            return EnergySnapshot(
                kwh=run.kwh,
                co2_kg=run.co2_kg,
                method=_describe({name: node.method for name, node in self._nodes.items()}),
                per_service={role: _sum(shares) for role, shares in services.items()},
                per_process=processes,
            )

    def state(self) -> dict[str, Any]:
        """All accounts as JSON-able values, for the learner's checkpoint."""
        with self._lock:
            return encode_state(self._nodes, self._processes)

    def _place_on_gpu(self, key: ProcessKey, node: str | None) -> None:
        """Record the node on whose accelerators a process computes; None for none."""
        before = self._gpu_nodes.pop(key, None)
        if before in self._nodes:
            self._nodes[before].gpu_users.discard(key)
        if node is not None:
            self._nodes[node].gpu_users.add(key)
            self._gpu_nodes[key] = node

    def _has_room(self, key: ProcessKey, node: str) -> bool:
        """Whether a process can have an account. Makes room if possible."""
        if key.role not in self._roles and len(self._roles) >= self._limits.roles:
            return False
        if not self._has_room_for_node(node):
            return False
        self._roles.add(key.role)
        if key not in self._processes and len(self._processes) >= self._limits.processes:
            self._merge_the_most_silent()
        return True

    def _has_room_for_node(self, name: str) -> bool:
        if name in self._nodes or len(self._nodes) < self._limits.nodes:
            return True
        silent = next((known for known, node in self._nodes.items() if not node.meter), None)
        if silent is None:
            return False
        del self._nodes[silent]
        return True

    def _merge_the_most_silent(self) -> None:
        """Merge the account of the longest silent process into its role's account of others."""
        key = next(key for key in self._processes if key.name != OTHERS)
        account, others = self._processes.pop(key), ProcessKey(key.role, OTHERS)
        merged = self._processes.setdefault(others, ProcessAccount())
        merged.add(account)
        self._place_on_gpu(key, None)
        for node in self._nodes.values():
            if unsettled := node.unsettled_cpu.pop(key, 0.0):
                node.add_cpu(others, unsettled)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A ledger that continues from `state`. Raises InvalidInputError as `decode_state` does."""
        ledger = cls()
        ledger._nodes, ledger._processes = decode_state(state)
        ledger._roles = {key.role for key in ledger._processes}
        ledger._gpu_nodes = {key: name for name, node in ledger._nodes.items() for key in node.gpu_users}
        return ledger

    def _charge(self, node: NodeAccount, key: ProcessKey, amount: Amount) -> None:
        self._processes[key].energy += amount
        node.charged += amount


def _sum(amounts: Collection[Amount]) -> Amount:
    # Rounded once: totals must not fall when accounts change their order.
    return Amount(math.fsum(each.kwh for each in amounts), math.fsum(each.co2_kg for each in amounts))


def _describe(methods: Mapping[str, str]) -> str:
    """One line for all nodes. Nodes are named only if they differ."""
    if not methods:
        return f"{UNAVAILABLE}: no meter and no process has reported"
    if len(set(methods.values())) == 1:
        return next(iter(methods.values()))
    described = [f"{node}: {method}" for node, method in sorted(methods.items())]
    more = [f"{len(described) - _DESCRIBED_NODES} more nodes"] if len(described) > _DESCRIBED_NODES else []
    return one_line(" | ".join([*described[:_DESCRIBED_NODES], *more]), _MOST_DESCRIPTION_BYTES)
