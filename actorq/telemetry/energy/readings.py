"""Values that meters report and the ledger returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
class EnergySnapshot:
    """The use of a run so far."""

    kwh: float
    """Energy of the run: the sum of its processes."""
    co2_kg: float
    method: str
    """The method of measurement, for each node if they differ."""
    per_service: Mapping[str, Amount] = field(default_factory=dict)
    """The run's energy by role: learner, quantizer, actor."""
    per_process: Mapping[str, Amount] = field(default_factory=dict)
    """The run's energy by `role/name`."""
