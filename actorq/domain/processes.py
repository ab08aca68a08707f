"""What processes and meters report of the resources that they use."""

from dataclasses import dataclass

UNAVAILABLE = "unavailable"
"""Prefix of the method of a reading without energy. The reason follows."""


@dataclass(frozen=True)
class Amount:
    """An amount of energy and its CO2 equivalents."""

    kwh: float = 0.0
    co2_kg: float = 0.0

    def __add__(self, other: "Amount") -> "Amount":
        """The sum of two amounts."""
        return Amount(self.kwh + other.kwh, self.co2_kg + other.co2_kg)

    def scaled(self, factor: float) -> "Amount":
        """This amount times `factor`."""
        return Amount(self.kwh * factor, self.co2_kg * factor)


@dataclass(frozen=True)
class NodeEnergy:
    """Counters of one meter for one whole machine since that meter started. All counters only grow."""

    node: str
    """Name of the machine. Its processes must report the same name."""
    cpu_kwh: float
    ram_kwh: float
    gpu_kwh: float
    co2_kg: float
    """CO2 equivalents of the three energies in kilograms."""
    busy_cpu_seconds: float
    """CPU seconds in which the machine was not idle, over all cores and processes."""
    method: str
    """The method of measurement, to show beside every figure; `unavailable: REASON` without a measurement."""
    tdp_watts: float | None = None
    """Full-load power in the CPU power model; None if the CPU power was measured or is not known."""

    @property
    def kwh(self) -> float:
        """Energy of processors, memory and accelerators together."""
        return self.cpu_kwh + self.ram_kwh + self.gpu_kwh


@dataclass(frozen=True)
class ProcessStats:
    """Resources of one operating-system process since its start, without its children."""

    name: str
    """Name within the run, such as `actor-0`."""
    role: str
    """Service of the process, such as `actor`."""
    node: str
    """Machine of the process. The meter of that machine must report the same name."""
    pid: int
    """Process id; in a container it is often 1."""
    started_at: float
    """Start in Unix seconds."""
    cpu_seconds: float
    """CPU time, user and system, of all its threads."""
    resident_bytes: int
    """Resident memory now."""
    peak_resident_bytes: int
    """Highest resident memory so far."""

    @property
    def incarnation(self) -> str:
        """Identifies this life of the process. Process ids alone are reused, above all in containers."""
        return f"{self.pid}-{round(self.started_at * 1000)}"
