"""The run's energy account: whole machines in, shares of processes, services and the run out."""

import threading
from collections.abc import Mapping
from typing import Any, Self

from actorq.telemetry.energy.accounts import NodeAccount, ProcessAccount, ProcessKey
from actorq.telemetry.energy.ledger_state import decode_state, encode_state
from actorq.telemetry.energy.readings import (
    UNAVAILABLE,
    Amount,
    EnergySnapshot,
    NodeEnergy,
    ProcessEnergy,
    require_count,
    require_name,
)
from actorq.telemetry.energy.sharing import Interval, share


class EnergyLedger:
    """Shares the energy of machines out to the processes of a run, by CPU time.

    Between two readings of a node's meter a process gets

        d_node_kwh * d_process_cpu / max(d_node_busy_cpu, sum of d_process_cpu on that node)

    and what is left is `other`: not the run's. So a process pays for its part of the idle power and of the memory
    too, and a machine on which nothing ran is nobody's. Process reports only accumulate; a meter's reading settles
    them. CPU seconds beyond the reading's interval claim what is unclaimed of the intervals before, so that
    processes may report less often than meters (`sharing`).

    The accelerators' energy is not a matter of CPU time: on a node with processes that use them it goes to those
    alone, in equal parts and whole; where nobody said so it is shared like the rest.

    Reports may come late, twice or out of order. Totals never fall, and survive restarts of processes, of meters
    and (through `state`) of the learner. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeAccount] = {}
        self._processes: dict[ProcessKey, ProcessAccount] = {}

    def report_process(
        self, name: str, role: str, node: str, cpu_seconds: float, *, incarnation: str, uses_gpu: bool = False
    ) -> None:
        """Take a process's CPU time. It is charged when the meter of its node is read next.

        Args:
            name: the process's name within its role; the same after a restart.
            role: its service.
            node: the machine that it runs on, as the meter there names it.
            cpu_seconds: CPU seconds of this incarnation, cumulative from its start.
            incarnation: tells one life of the process from another, as `ProcessStats.incarnation` does.
            uses_gpu: whether it computes on the node's accelerators.

        Raises:
            InvalidInputError: a name is empty, or cpu_seconds is negative or not finite. Nothing is changed.
        """
        for what, value in (("name", name), ("role", role), ("node", node), ("incarnation", incarnation)):
            require_name(what, value)
        require_count("cpu_seconds", cpu_seconds)
        key = ProcessKey(role, name)
        with self._lock:
            fresh = self._processes.setdefault(key, ProcessAccount()).take(incarnation, cpu_seconds)
            self._nodes.setdefault(node, NodeAccount()).add_cpu(key, fresh)
            for name_of_node, account in self._nodes.items():
                if uses_gpu and name_of_node == node:
                    account.gpu_users.add(key)
                else:
                    account.gpu_users.discard(key)

    def report_node(self, reading: NodeEnergy, *, meter: str) -> None:
        """Take a meter's reading, and charge the node's processes for what they did since the one before.

        Args:
            reading: cumulative since that meter started.
            meter: tells one life of the node's meter from another, as its `ProcessStats.incarnation` does.

        Raises:
            InvalidInputError: `meter` is empty. Nothing is changed.
        """
        require_name("meter", meter)
        with self._lock:
            node = self._nodes.setdefault(reading.node, NodeAccount())
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
        """The totals of the run, its services and its processes, and of the machines."""
        with self._lock:
            run, services = ProcessAccount(), dict[str, ProcessAccount]()
            for key, account in self._processes.items():
                for total in (run, services.setdefault(key.role, ProcessAccount())):
                    total.energy += account.energy
                    total.cpu_seconds += account.cpu_seconds
            machines = sum((node.total for node in self._nodes.values()), Amount())
            other = sum((node.total_unclaimed for node in self._nodes.values()), Amount())
            return EnergySnapshot(
                kwh=run.energy.kwh,
                co2_kg=run.energy.co2_kg,
                method=_describe({name: node.method for name, node in self._nodes.items()}),
                complete=bool(self._nodes) and all(node.metered for node in self._nodes.values()),
                per_service={role: _as_share(account) for role, account in services.items()},
                per_process={str(key): _as_share(account) for key, account in self._processes.items()},
                node_kwh=machines.kwh,
                node_co2_kg=machines.co2_kg,
                other_kwh=other.kwh,
                other_co2_kg=other.co2_kg,
            )

    def state(self) -> dict[str, Any]:
        """Everything, as JSON-able values, to be saved with the learner's checkpoint."""
        with self._lock:
            return encode_state(self._nodes, self._processes)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """A ledger that goes on where `state` was taken.

        Raises:
            InvalidInputError: it is not a state of this version, or a figure in it is negative or not finite.
        """
        ledger = cls()
        ledger._nodes, ledger._processes = decode_state(state)
        return ledger

    def _charge(self, node: NodeAccount, key: ProcessKey, amount: Amount) -> None:
        self._processes[key].energy += amount
        node.charged += amount


def _as_share(account: ProcessAccount) -> ProcessEnergy:
    return ProcessEnergy(account.energy.kwh, account.energy.co2_kg, account.cpu_seconds)


def _describe(methods: Mapping[str, str]) -> str:
    """One line for all nodes; nodes are named only where they differ."""
    if not methods:
        return f"{UNAVAILABLE}: no meter and no process has reported"
    if len(set(methods.values())) == 1:
        return next(iter(methods.values()))
    return " | ".join(f"{node}: {method}" for node, method in sorted(methods.items()))
