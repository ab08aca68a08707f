"""Messages about the resources of processes and the energy of nodes."""

from collections.abc import Sequence

from actorq.telemetry.energy import NodeEnergy
from actorq.telemetry.process_stats import ProcessStats
from actorq.v1 import process_pb2
from actorq.wire import bounds
from actorq.wire.tensors import timestamp_from_proto, timestamp_to_proto


def process_to_proto(stats: ProcessStats) -> process_pb2.ProcessStats:
    """Encode a process's resources."""
    return process_pb2.ProcessStats(**vars(stats) | {"started_at": timestamp_to_proto(stats.started_at)})


def process_from_proto(message: process_pb2.ProcessStats) -> ProcessStats:
    """Decode a process's resources."""
    return ProcessStats(
        name=bounds.name("process.name", message.name),
        role=bounds.name("process.role", message.role),
        node=bounds.name("process.node", message.node),
        pid=message.pid,
        started_at=timestamp_from_proto(message.started_at, "process.started_at"),
        cpu_seconds=bounds.seconds("process.cpu_seconds", message.cpu_seconds),
        resident_bytes=bounds.count("process.resident_bytes", message.resident_bytes),
        peak_resident_bytes=bounds.count("process.peak_resident_bytes", message.peak_resident_bytes),
    )


def processes_from_proto(messages: Sequence[process_pb2.ProcessStats]) -> tuple[ProcessStats, ...]:
    """Decode the resources of several processes."""
    return tuple(process_from_proto(message) for message in bounds.items("processes", messages, bounds.MAX_PROCESSES))


def node_energy_to_proto(energy: NodeEnergy) -> process_pb2.NodeEnergy:
    """Encode a node's energy."""
    return process_pb2.NodeEnergy(
        node=energy.node,
        cpu_kwh=energy.cpu_kwh,
        ram_kwh=energy.ram_kwh,
        gpu_kwh=energy.gpu_kwh,
        co2_kg=energy.co2_kg,
        busy_cpu_seconds=energy.busy_cpu_seconds,
        method=energy.method,
    )


def node_energy_from_proto(message: process_pb2.NodeEnergy) -> NodeEnergy:
    """Decode a node's energy."""
    return NodeEnergy(
        node=bounds.name("energy.node", message.node),
        cpu_kwh=bounds.amount("energy.cpu_kwh", message.cpu_kwh, bounds.MAX_KWH),
        ram_kwh=bounds.amount("energy.ram_kwh", message.ram_kwh, bounds.MAX_KWH),
        gpu_kwh=bounds.amount("energy.gpu_kwh", message.gpu_kwh, bounds.MAX_KWH),
        co2_kg=bounds.amount("energy.co2_kg", message.co2_kg, bounds.MAX_KWH),
        busy_cpu_seconds=bounds.seconds("energy.busy_cpu_seconds", message.busy_cpu_seconds),
        method=bounds.text("energy.method", message.method),
    )
