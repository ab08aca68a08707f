"""What was emitted so far: how often and how fast."""

from collections import Counter
from collections.abc import Iterable

from actorq.domain.policy import PolicyDescriptor
from actorq.telemetry.histogram import Histogram


class EmissionCounts:
    """Counts publications since this process started; for one event loop.

    seconds: from the last byte of a checkpoint to policies that are served, for all schemes together.
    refusals: rungs that the fidelity gate did not let through, by scheme.
    """

    def __init__(self) -> None:
        self.policies: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.seconds = Histogram()

    def note(self, descriptors: Iterable[PolicyDescriptor], seconds: float) -> None:
        """A version was emitted."""
        self.seconds.observe(seconds)
        for descriptor in descriptors:
            self.policies[descriptor.scheme] += 1
            self.refusals[descriptor.scheme] += len(descriptor.fidelity.refused)
