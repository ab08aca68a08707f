"""The values that meters report and that the ledger answers with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from actorq.errors import InvalidInputError

UNAVAILABLE = "unavailable"
"""How the method of a reading without energy starts; the reason follows."""


@dataclass(frozen=True)
class Amount:
    """An amount of energy and the greenhouse gas that came with it."""

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
    """What one meter has counted on one whole machine since that meter started. All counters only grow."""

    node: str
    """Name of the machine; the processes on it must report the same name."""
    cpu_kwh: float
    """Energy of the processors in kilowatt-hours."""
    ram_kwh: float
    """Energy of the memory in kilowatt-hours."""
    gpu_kwh: float
    """Energy of the accelerators in kilowatt-hours."""
    co2_kg: float
    """CO2 equivalents of the three energies together, in kilograms."""
    busy_cpu_seconds: float
    """CPU seconds that the machine did not idle, over all cores and all processes."""
    method: str
    """How the figures came about, to be shown beside every one of them; `unavailable: REASON` if they did not."""
    tdp_watts: float | None = None
    """Full-load power in the CPU power model; None if the CPU power was measured, or is not known."""

    def __post_init__(self) -> None:
        """Reject what no meter can have counted.

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
        """False where nothing could be measured. The energies then stand still, at zero if they never moved."""
        return not self.method.startswith(UNAVAILABLE)


@dataclass(frozen=True)
class ProcessEnergy:
    """The share of one process (over all its restarts) or of all the processes of one service."""

    kwh: float
    co2_kg: float
    cpu_seconds: float
    """CPU seconds reported, over all restarts; also those that no meter covered."""


@dataclass(frozen=True)
class EnergySnapshot:
    """What a run has used so far."""

    kwh: float
    """Energy of the run: the sum of its processes."""
    co2_kg: float
    """CO2 equivalents of the run in kilograms."""
    method: str
    """How the energy was got, for each node where they differ."""
    complete: bool
    """True if every node that runs a process of the run has a meter, and all of them work."""
    per_service: Mapping[str, ProcessEnergy] = field(default_factory=dict)
    """The run's energy by role: learner, quantizer, actor."""
    per_process: Mapping[str, ProcessEnergy] = field(default_factory=dict)
    """The run's energy by `role/name`."""
    node_kwh: float = 0.0
    """All energy of the metered machines."""
    node_co2_kg: float = 0.0
    """All CO2 equivalents of the metered machines in kilograms."""
    other_kwh: float = 0.0
    """Energy of the metered machines that no process of the run accounts for."""
    other_co2_kg: float = 0.0
    """CO2 equivalents that no process of the run accounts for, in kilograms."""


def require_count(name: str, value: float) -> float:
    """`value`, if it can be a counter.

    Raises:
        InvalidInputError: it is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInputError(f"{name}: expected a finite number of at least 0, got {value}")
    return value


def require_name(what: str, value: str) -> str:
    """`value`, if it can name something.

    Raises:
        InvalidInputError: it is empty.
    """
    if not value:
        raise InvalidInputError(f"{what}: expected a name, got an empty string")
    return value
