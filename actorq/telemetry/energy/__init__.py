"""Energy and carbon of a run: one meter per node, with each process's share by CPU time.

`NodeMeter` runs in its own process and measures a whole machine. `EnergyLedger` lives in the learner and computes the
share of each process. Nothing here imports codecarbon until a meter is created.
"""

from actorq.telemetry.energy.ledger import EnergyLedger
from actorq.telemetry.energy.node_meter import NodeMeter, RunStart
from actorq.telemetry.energy.readings import Amount, NodeEnergy
from actorq.telemetry.energy.tracker import CodecarbonTracker

__all__ = ["Amount", "CodecarbonTracker", "EnergyLedger", "NodeEnergy", "NodeMeter", "RunStart"]
