"""Messages about the resources of processes and the energy of nodes."""

from collections.abc import Sequence

from actorq.domain import limits
from actorq.domain.processes import NodeEnergy, ProcessStats
from actorq.v1 import process_pb2
from actorq.wire import bounds
from actorq.wire.fields import Pair
from actorq.wire.tensors import TIME

PROCESS = Pair(
    process_pb2.ProcessStats,
    ProcessStats,
    {
        bounds.name: "name role node",
        bounds.anything: "pid",
        TIME: "started_at",
        bounds.seconds: "cpu_seconds",
        bounds.count: "resident_bytes peak_resident_bytes",
    },
    prefix="process.",
)
process_to_proto, process_from_proto = PROCESS.both

node_energy_to_proto, node_energy_from_proto = Pair(
    process_pb2.NodeEnergy,
    NodeEnergy,
    {
        bounds.name: "node",
        bounds.kwh: "cpu_kwh ram_kwh gpu_kwh co2_kg",
        bounds.seconds: "busy_cpu_seconds",
        bounds.text: "method",
    },
    prefix="energy.",
).both


def processes_from_proto(messages: Sequence[process_pb2.ProcessStats]) -> tuple[ProcessStats, ...]:
    """Decode the resources of several processes."""
    return tuple(map(process_from_proto, bounds.items("processes", messages, limits.MAX_PROCESSES)))
