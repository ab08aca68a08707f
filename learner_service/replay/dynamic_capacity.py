"""A replay that forgets what is too far from the policy (RLx2, arXiv 2205.15043, sec. 4.2)."""

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actorq.config import DynamicCapacityConfig
from actorq.status import DynamicCapacityStatus
from actorq.trajectory import Array
from learner_service.replay.buffer import ReplayBuffer

_log = logging.getLogger(__name__)

# Observations that the policy is given at once, so that large ones need little memory as floats.
_ROWS_AT_ONCE = 256


class DynamicCapacity:
    """Looks at the oldest transitions every `period_steps` inserted ones, and drops of them what is too far off.

    With K the `oldest` transitions, or all there are, g_i what the policy that acted would have done without noise in
    s_i, pi(s_i) what the present one would do, and h half the range of each component of an action:

        D = 1/K sum_{i<K} || (pi(s_i) - g_i) / h ||_2

    A mean of Euclidean norms over the components of an action, and so in halves of the action range; where actions are
    in [-1, 1] it is the paper's distance. It grows with the number of components: the same difference d in each of A
    of them is sqrt(A) d.

    Where D is above `threshold` and more than `min_size` transitions are stored, the oldest `dropped` share of the
    replay goes at once: whole segments, so up to one segment more, but never one of the last `min_size` transitions.
    Else nothing goes, and the replay grows with each insert, up to its capacity.

    What is dropped is gone from the files before anything else happens, so a killed learner does not see it again. It
    goes on with the looks that its last checkpoint knows of: a look that came after is taken again, of what is left by
    then and with the policy of the checkpoint, and may drop its share a second time.

    act: the policy without noise, [B, *policy_observation] -> [B, *action].

    The trainer's thread's, but for `status`. The store keeps greedy actions.
    """

    def __init__(self, replay: ReplayBuffer, settings: DynamicCapacityConfig, act: Callable[[Array], Array]) -> None:
        low, high = replay.spec.actions.bounds()
        self._replay = replay
        self._settings = settings
        self._act = act
        self._half_range = (high - low) / 2
        self._looked_at = replay.total_transitions
        self._distance: float | None = None
        self._drops = 0
        self._dropped = 0

    @property
    def due(self) -> bool:
        """Whether a multiple of `period_steps` was passed by what was inserted since the last look."""
        period = self._settings.period_steps
        return self._replay.total_transitions // period > self._looked_at // period

    def look(self) -> None:
        """Measure the distance, and drop the oldest if it is too large."""
        replay, settings = self._replay, self._settings
        self._looked_at = replay.total_transitions
        observations, greedy = replay.oldest_greedy_actions(settings.oldest)
        if not len(observations):
            return
        self._distance = self._mean_distance(observations, greedy)
        if self._distance <= settings.threshold:
            return
        stored = replay.transitions
        dropped = replay.drop_oldest(math.ceil(settings.dropped * stored), settings.min_size)
        if dropped:
            self._drops += 1
            self._dropped += dropped
            _log.info(
                "replay: the policy is %.3f from the oldest actions, above %g: dropped %d of %d transitions",
                *(self._distance, settings.threshold, dropped, stored),
            )

    def status(self) -> DynamicCapacityStatus:
        """What is stored, the distance at the last look, and what was dropped; over all restarts."""
        return DynamicCapacityStatus(self._replay.transitions, self._distance, self._drops, self._dropped)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep, as JSON values."""
        return {
            "looked_at": self._looked_at,
            "distance": self._distance,
            "drops": self._drops,
            "dropped_transitions": self._dropped,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._looked_at, self._distance = state["looked_at"], state["distance"]
        self._drops, self._dropped = state["drops"], state["dropped_transitions"]

    def _mean_distance(self, observations: Array, greedy: Array) -> float:
        total = 0.0
        for start in range(0, len(greedy), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            difference = self._act(observations[rows]).astype(np.float64) - greedy[rows].astype(np.float64)
            difference /= self._half_range
            total += float(np.linalg.norm(difference.reshape(len(difference), -1), axis=1).sum())
        return total / len(greedy)
