"""Shares a machine's energy out to processes by CPU time, newest interval first.

Process reports and meter reports are not in step. CPU seconds beyond the newest interval were used earlier and reported
late, so they claim unclaimed energy of earlier intervals. Otherwise a process that reports ten times less often than
the meter would pay for a tenth of its use.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from actorq.domain.processes import Amount

Key = TypeVar("Key")


@dataclass
class Interval:
    """The time between two readings of a meter: its energy, spread evenly over its busy CPU seconds."""

    energy: Amount
    busy_seconds: float
    claimed_seconds: float = 0.0

    def claim(self, cpu_seconds: float) -> tuple[float, Amount]:
        """Claim up to `cpu_seconds` of the unclaimed ones. Returns the claimed seconds and their energy."""
        seconds = min(cpu_seconds, self.busy_seconds - self.claimed_seconds)
        if seconds <= 0:
            return 0.0, Amount()
        self.claimed_seconds += seconds
        return seconds, self.energy.scaled(seconds / self.busy_seconds)


def share(newest_first: Iterable[Interval], cpu_seconds: Mapping[Key, float]) -> dict[Key, Amount]:
    """Charge each process for its CPU seconds, and mark these as claimed in the intervals.

    If the processes report more seconds than the intervals have unclaimed, each process gets its proportion: energy is
    never invented. An interval without busy seconds cannot be claimed.
    """
    total = wanted = sum(cpu_seconds.values())
    if total <= 0:
        return {}
    claimed = Amount()
    for interval in newest_first:
        seconds, energy = interval.claim(wanted)
        wanted -= seconds
        claimed += energy
    return {key: claimed.scaled(seconds / total) for key, seconds in cpu_seconds.items()}
