"""Energy and carbon of a run: one meter per node, shared out to the run's processes by CPU time.

`NodeMeter` runs in a process of its own and measures a whole machine; `EnergyLedger` lives in the learner and
says which part of it each process caused. Nothing here imports codecarbon until a meter is created.
"""

from actorq.telemetry.energy.ledger import EnergyLedger, LedgerLimits
from actorq.telemetry.energy.node_meter import Earlier, MeterSettings, NodeMeter, RunStart
from actorq.telemetry.energy.readings import Amount, EnergySnapshot, NodeEnergy, ProcessEnergy
from actorq.telemetry.energy.tracker import EnergyTracker, TrackerError, TrackerTotals

__all__ = [
    "Amount",
    "Earlier",
    "EnergyLedger",
    "EnergySnapshot",
    "EnergyTracker",
    "LedgerLimits",
    "MeterSettings",
    "NodeEnergy",
    "NodeMeter",
    "ProcessEnergy",
    "RunStart",
    "TrackerError",
    "TrackerTotals",
]
