"""Values that meters report and the ledger returns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from actorq.errors import InvalidInputError

UNAVAILABLE = "unavailable"
"""Prefix of the method of a reading without energy. The reason follows."""


@dataclass(frozen=True)
class Amount:
    """An amount of energy and its greenhouse gas."""

    kwh: float = 0.0
    """Electric energy in kilowatt-hours."""
    co2_kg: float = 0.0
    """CO2 equivalents in kilograms."""

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
    """Energy of the processors in kilowatt-hours."""
    ram_kwh: float
    """Energy of the memory in kilowatt-hours."""
    gpu_kwh: float
    """Energy of the accelerators in kilowatt-hours."""
    co2_kg: float
    """CO2 equivalents of the three energies in kilograms."""
    busy_cpu_seconds: float
    """CPU seconds in which the machine was not idle, over all cores and processes."""
    method: str
    """The method of measurement, to show beside every figure; `unavailable: REASON` without a measurement."""
    tdp_watts: float | None = None
    """Full-load power in the CPU power model; None if the CPU power was measured or is not known."""

    def __post_init__(self) -> None:
        """Reject impossible counters.

        Raises:
            InvalidInputError: the node has no name, or a counter is negative or not finite.
        """
        require_name("node", self.node)
        for name in ("cpu_kwh", "ram_kwh", "gpu_kwh", "co2_kg", "busy_cpu_seconds"):
            require_count(name, getattr(self, name))

    @property
    def kwh(self) -> float:
        """Energy of processors, memory and accelerators together."""
        return self.cpu_kwh + self.ram_kwh + self.gpu_kwh

    @property
    def available(self) -> bool:
        """False if nothing can be measured. The energies then stay constant, at zero if they never grew."""
        return not self.method.startswith(UNAVAILABLE)


@dataclass(frozen=True)
class ProcessEnergy:
    """The share of one process (over all its restarts) or of all the processes of one service."""

    kwh: float
    co2_kg: float
    cpu_seconds: float
    """Reported CPU seconds over all restarts, including those that no meter covered."""


@dataclass(frozen=True)
class EnergySnapshot:
    """The use of a run so far."""

    kwh: float
    """Energy of the run: the sum of its processes."""
    co2_kg: float
    """CO2 equivalents of the run in kilograms."""
    method: str
    """The method of measurement, for each node if they differ."""
    complete: bool
    """Whether every node with a process of the run has a working meter."""
    per_service: Mapping[str, ProcessEnergy] = field(default_factory=dict)
    """The run's energy by role: learner, quantizer, actor."""
    per_process: Mapping[str, ProcessEnergy] = field(default_factory=dict)
    """The run's energy by `role/name`."""
    node_kwh: float = 0.0
    """All energy of the metered machines."""
    node_co2_kg: float = 0.0
    """All CO2 equivalents of the metered machines in kilograms."""
    other_kwh: float = 0.0
    """Energy of the metered machines that belongs to no process of the run."""
    other_co2_kg: float = 0.0
    """CO2 equivalents that belong to no process of the run, in kilograms."""


def require_count(name: str, value: float) -> float:
    """`value`, if it is a valid counter.

    Raises:
        InvalidInputError: it is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInputError(f"{name}: expected a finite number of at least 0, got {value}")
    return value


def require_name(what: str, value: str) -> str:
    """`value`, if it is a valid name.

    Raises:
        InvalidInputError: it is empty.
    """
    if not value:
        raise InvalidInputError(f"{what}: expected a name, got an empty string")
    return value
