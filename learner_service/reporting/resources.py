"""Resource use of the run's processes, from their own reports, and the services' shares of the nodes' energy."""

from dataclasses import replace

import torch

from actorq.domain.processes import Amount, NodeEnergy, ProcessStats
from actorq.domain.status import Energy
from actorq.telemetry.process_stats import measure_process
from learner_service.energy.ledger import EnergyLedger

# Maximum number of listed processes: those with the newest reports.
_MOST_PROCESSES = 1000


class Resources:
    """Processes by role and name, and the energy ledger. Lives on the event loop. node: empty for the host name."""

    def __init__(self, energy: EnergyLedger | None = None, node: str = "") -> None:
        self.ledger = energy or EnergyLedger()
        self._node = node
        self._processes: dict[tuple[str, str], ProcessStats] = {}

    def record(self, stats: ProcessStats, uses_gpu: bool = False) -> None:
        """Record a process's report of itself."""
        # The peak is kept across restarts, because a restarted process starts small.
        key = (stats.role, stats.name)
        known = self._processes.pop(key, None)
        peak = max(stats.peak_resident_bytes, known.peak_resident_bytes if known else 0)
        self._processes[key] = replace(stats, peak_resident_bytes=peak)
        while len(self._processes) > _MOST_PROCESSES:
            del self._processes[next(iter(self._processes))]
        self.ledger.report_process(stats, uses_gpu)

    def record_self(self) -> None:
        """Record the learner's resource use."""
        uses_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self.record(measure_process("learner", "learner", self._node), uses_gpu)

    def report_energy(self, energy: NodeEnergy, processes: tuple[ProcessStats, ...]) -> None:
        """Record a node's energy from its meter. The meter is the first of `processes`."""
        self.record_self()
        for stats in processes:
            self.record(stats)
        self.ledger.report_node(energy, meter=processes[0].incarnation if processes else energy.node)

    def processes(self) -> tuple[ProcessStats, ...]:
        """The newest report of each process."""
        return tuple(self._processes.values())

    def energy(self) -> Energy:
        """Energy of the whole run and of each service."""
        services = self.ledger.services()
        run = sum(services.values(), Amount())
        return Energy(run.kwh, run.co2_kg, self.ledger.method(), {name: share.kwh for name, share in services.items()})
