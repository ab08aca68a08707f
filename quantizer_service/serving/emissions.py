"""What was emitted so far: how often, how fast, and the newest of each scheme."""

from collections import Counter
from collections.abc import Iterable

from actorq.domain.policy import PolicyDescriptor
from actorq.telemetry.histogram import Histogram


class Emissions:
    """Counts publications since this process started; for one event loop.

    seconds: from the last byte of a checkpoint to policies that are served, for all schemes together.
    refusals: rungs that the fidelity gate did not let through, by scheme.
    newest: the newest policy of each scheme, also of one that was found in the store.
    """

    def __init__(self) -> None:
        self.policies: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.seconds = Histogram()
        self.newest: dict[str, PolicyDescriptor] = {}

    def found(self, descriptor: PolicyDescriptor) -> None:
        """A policy that an earlier life of this process emitted."""
        self.newest[descriptor.scheme] = descriptor

    def note(self, descriptors: Iterable[PolicyDescriptor], seconds: float) -> None:
        """A version was emitted."""
        self.seconds.observe(seconds)
        for descriptor in descriptors:
            self.policies[descriptor.scheme] += 1
            self.refusals[descriptor.scheme] += len(descriptor.fidelity.refused)
            self.newest[descriptor.scheme] = descriptor
