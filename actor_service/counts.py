"""Counters and histograms of an actor, for its metrics."""

import threading
from dataclasses import dataclass, field

from actorq.telemetry.histogram import Histogram


class Count:
    """A thread-safe counter."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Add one."""
        with self._lock:
            self.value += 1


@dataclass(frozen=True)
class ActorCounts:
    """Counts of retries, policy latencies and environment faults. `actor_metrics` describes each count."""

    learner_retries: Count = field(default_factory=Count)
    quantizer_retries: Count = field(default_factory=Count)
    load_seconds: Histogram = field(default_factory=Histogram)
    activation_seconds: Histogram = field(default_factory=Histogram)
    policy_wait_seconds: Histogram = field(default_factory=Histogram)
    dropped_segments: Count = field(default_factory=Count)
    environment_restarts: Count = field(default_factory=Count)
    environment_resets: Count = field(default_factory=Count)
    cut_episodes: Count = field(default_factory=Count)

    def add_fault(self, restarted: bool) -> None:
        """Count a fault of an environment. restarted: whether the environment was recreated, not just reset."""
        (self.environment_restarts if restarted else self.environment_resets).add()
