"""Messages about the resources of processes and the energy of nodes."""

from collections.abc import Sequence

from actorq.domain import limits
from actorq.domain.processes import NodeEnergy, ProcessStats
from actorq.v1 import process_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields
from actorq.wire.tensors import timestamp_to_proto


def process_to_proto(stats: ProcessStats) -> process_pb2.ProcessStats:
    """Encode a process's resources."""
    return process_pb2.ProcessStats(**vars(stats) | {"started_at": timestamp_to_proto(stats.started_at)})


_PROCESS = Fields(
    process_pb2.ProcessStats,
    "process.",
    {
        bounds.name: "name role node",
        bounds.seconds: "cpu_seconds",
        bounds.count: "resident_bytes peak_resident_bytes",
    },
)


def process_from_proto(message: process_pb2.ProcessStats) -> ProcessStats:
    """Decode a process's resources."""
    started_at = bounds.unix_seconds("process.started_at", message.started_at)
    return ProcessStats(pid=message.pid, started_at=started_at, **_PROCESS.of(message))


def processes_from_proto(messages: Sequence[process_pb2.ProcessStats]) -> tuple[ProcessStats, ...]:
    """Decode the resources of several processes."""
    return tuple(process_from_proto(message) for message in bounds.items("processes", messages, limits.MAX_PROCESSES))


def node_energy_to_proto(energy: NodeEnergy) -> process_pb2.NodeEnergy:
    """Encode a node's energy."""
    fields = vars(energy).copy()
    del fields["tdp_watts"]
    return process_pb2.NodeEnergy(**fields)


_NODE_ENERGY = Fields(
    process_pb2.NodeEnergy,
    "energy.",
    {
        bounds.name: "node",
        bounds.kwh: "cpu_kwh ram_kwh gpu_kwh co2_kg",
        bounds.seconds: "busy_cpu_seconds",
        bounds.text: "method",
    },
)


def node_energy_from_proto(message: process_pb2.NodeEnergy) -> NodeEnergy:
    """Decode a node's energy."""
    return NodeEnergy(**_NODE_ENERGY.of(message))
