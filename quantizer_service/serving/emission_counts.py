"""Counts and times emissions, for the metrics."""

from collections import Counter
from collections.abc import Iterable

from actorq.domain.policy import PolicyDescriptor
from actorq.telemetry.histogram import Histogram


class EmissionCounts:
    """Counts of publications since this process started. For use in one event loop.

    policies: emitted policies by scheme.
    refusals: rungs that the fidelity gate refused, by scheme.
    seconds: time from the last byte of a checkpoint to served policies, for all schemes together.
    """

    def __init__(self) -> None:
        self.policies: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.seconds = Histogram()

    def note(self, descriptors: Iterable[PolicyDescriptor], seconds: float) -> None:
        """Count an emitted version."""
        self.seconds.observe(seconds)
        for descriptor in descriptors:
            self.policies[descriptor.scheme] += 1
            self.refusals[descriptor.scheme] += len(descriptor.fidelity.refused)
