"""The rule that shares a machine's energy out to processes: by CPU time, newest interval first.

Process reports and meter reports are not in step. CPU seconds that exceed the newest interval were burnt
earlier and arrived late, so they claim what is still unclaimed of the intervals before it. Without that, a
process that reports ten times less often than the meter would be charged for a tenth of what it used.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from actorq.telemetry.energy.readings import Amount

Key = TypeVar("Key")


@dataclass
class Interval:
    """Between two readings of a meter: its energy, and the busy CPU seconds over which that is spread evenly."""

    energy: Amount
    busy_seconds: float
    claimed_seconds: float = 0.0

    def claim(self, cpu_seconds: float) -> tuple[float, Amount]:
        """Take up to `cpu_seconds` of what is unclaimed; the seconds taken and the energy that goes with them."""
        seconds = min(cpu_seconds, self.busy_seconds - self.claimed_seconds)
        if seconds <= 0:
            return 0.0, Amount()
        self.claimed_seconds += seconds
        return seconds, self.energy.scaled(seconds / self.busy_seconds)


def share(newest_first: Iterable[Interval], cpu_seconds: Mapping[Key, float]) -> dict[Key, Amount]:
    """Charge each process for its CPU seconds, and mark them as claimed in the intervals.

    If the intervals hold fewer unclaimed seconds than all processes together report, each gets its proportion of
    them: energy is never made up. An interval without busy seconds cannot be claimed.
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
