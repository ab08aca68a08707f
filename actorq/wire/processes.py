"""Resources of processes and the energy of nodes."""

import math

from actorq.errors import InvalidInputError
from actorq.telemetry.energy import NodeEnergy
from actorq.telemetry.process_stats import ProcessStats
from actorq.v1 import process_pb2
from actorq.wire.tensors import timestamp_from_proto, timestamp_to_proto


def process_to_proto(stats: ProcessStats) -> process_pb2.ProcessStats:
    """Encode a process's resources."""
    return process_pb2.ProcessStats(
        name=stats.name,
        role=stats.role,
        node=stats.node,
        pid=stats.pid,
        started_at=timestamp_to_proto(stats.started_at),
        cpu_seconds=stats.cpu_seconds,
        resident_bytes=stats.resident_bytes,
        peak_resident_bytes=stats.peak_resident_bytes,
    )


def process_from_proto(message: process_pb2.ProcessStats) -> ProcessStats:
    """Decode a process's resources; its processor time must be finite and not negative."""
    if not (math.isfinite(message.cpu_seconds) and message.cpu_seconds >= 0):
        raise InvalidInputError(f"process: cpu_seconds must be finite and at least 0, got {message.cpu_seconds}")
    return ProcessStats(
        name=message.name,
        role=message.role,
        node=message.node,
        pid=message.pid,
        started_at=timestamp_from_proto(message.started_at),
        cpu_seconds=message.cpu_seconds,
        resident_bytes=message.resident_bytes,
        peak_resident_bytes=message.peak_resident_bytes,
    )


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
    """Decode a node's energy; all figures must be finite and not negative."""
    figures = (message.cpu_kwh, message.ram_kwh, message.gpu_kwh, message.co2_kg, message.busy_cpu_seconds)
    if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
        raise InvalidInputError(f"energy: figures must be finite and at least 0, got {figures}")
    return NodeEnergy(message.node, *figures, method=message.method)
