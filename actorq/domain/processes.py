"""Resource usage that processes and meters report."""

from dataclasses import dataclass

UNAVAILABLE = "unavailable"
"""Prefix of a reading's method when there is no energy. The reason follows."""


@dataclass(frozen=True)
class Amount:
    """An amount of energy and its CO2 equivalents."""

    kwh: float = 0.0
    co2_kg: float = 0.0

    def __add__(self, other: "Amount") -> "Amount":
        """The sum of two amounts."""
        return Amount(self.kwh + other.kwh, self.co2_kg + other.co2_kg)


@dataclass(frozen=True)
class NodeEnergy:
    """Counters of one meter for one whole machine since that meter started. Counters never decrease.

    `NodeEnergy` in protos/actorq/v1/process.proto explains the fields, with their units.

    node: name of the machine. Its processes must report the same name.
    tdp_watts: full-load power in the CPU power model; None if the CPU power was measured or is unknown.
    """

    node: str
    cpu_kwh: float
    ram_kwh: float
    gpu_kwh: float
    co2_kg: float
    busy_cpu_seconds: float
    method: str
    tdp_watts: float | None = None


@dataclass(frozen=True)
class ProcessStats:
    """Resources of one operating-system process, without its children. `started_at` is in Unix seconds.

    `ProcessStats` in protos/actorq/v1/process.proto explains the fields.
    """

    name: str
    role: str
    node: str
    pid: int
    started_at: float
    cpu_seconds: float
    resident_bytes: int
    peak_resident_bytes: int

    @property
    def incarnation(self) -> str:
        """Identifies one start of the process. Process ids alone are reused, especially in containers."""
        return f"{self.pid}-{round(self.started_at * 1000)}"
