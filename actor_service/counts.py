"""What an actor counts beside its work, for its metrics."""

import threading
from dataclasses import dataclass, field

from actorq.telemetry.histogram import Histogram


class Count:
    """A number that rises; thread-safe."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """One more."""
        with self._lock:
            self.value += 1


@dataclass(frozen=True)
class ActorCounts:
    """Streams that broke or could not be opened, by peer, how long policies took, and what environments did.

    load_seconds: from a received policy to a session that is ready to act.
    activation_seconds: from the learner's snapshot to the first action, by both machines' clocks.
    policy_wait_seconds: for which a policy that had taken its steps waited for a newer one.
    dropped_segments: in which an environment failed.
    environment_restarts: environments made anew, as they had raised an error.
    environment_resets: episodes broken off for NaN or infinity in an observation or reward.
    """

    learner_retries: Count = field(default_factory=Count)
    quantizer_retries: Count = field(default_factory=Count)
    load_seconds: Histogram = field(default_factory=Histogram)
    activation_seconds: Histogram = field(default_factory=Histogram)
    policy_wait_seconds: Histogram = field(default_factory=Histogram)
    dropped_segments: Count = field(default_factory=Count)
    environment_restarts: Count = field(default_factory=Count)
    environment_resets: Count = field(default_factory=Count)
