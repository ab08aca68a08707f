"""A replay that forgets what is too far from the policy (RLx2, arXiv 2205.15043, sec. 4.2)."""

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actorq.config.sparsity import DynamicCapacityConfig
from actorq.domain.status import DynamicCapacityStatus
from actorq.domain.trajectory import Array
from actorq.statefiles.tolerance import Tolerated
from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.storage.mapped_files import read_checked, write_checked

_log = logging.getLogger(__name__)

# Observations that the policy is given at once, so that large ones need little memory as floats.
_ROWS_AT_ONCE = 256


class DynamicCapacity:
    """Looks at the oldest transitions every `period_steps` inserted ones, and drops of them what is too far off.

    With K the `oldest` transitions, or all there are, g_i what the policy that acted would have done without noise in
    s_i, pi(s_i) what the present one would do, A components of an action, and h half the range of each:

        D = 1/(2 K A) sum_{i<K} || (pi(s_i) - g_i) / h ||_2^2

    Half a mean square, whatever the number of components; the same difference of d halves of the range in each is
    d^2 / 2. The paper writes a mean norm, but its published training, for which the threshold of 0.2 was chosen,
    computes this (docs/decisions/0012-policy-distance.md).

    Where D is above `threshold` and more than `min_size` transitions are stored, the oldest `dropped` share of the
    replay goes at once: whole segments, so up to one segment more, but never one of the last `min_size` transitions.
    Else nothing goes, and the replay grows with each insert, up to its capacity.

    What is dropped is gone from the store's files before anything else happens, so a killed learner does not see it
    again. When it last looked is noted beside them after each look, whatever checkpoints know: as the store goes on
    with what was inserted since the last of these, so does this. A kill between a drop and its note makes a learner
    look again at once, with its checkpoint's policy, and perhaps drop a second share.

    act: the policy without noise, [B, *policy_observation] -> [B, *action].

    The trainer's thread's, but for `status`. The store keeps greedy actions.
    """

    def __init__(self, replay: ReplayBuffer, settings: DynamicCapacityConfig, act: Callable[[Array], Array]) -> None:
        low, high = replay.spec.actions.bounds()
        self._replay = replay
        self._settings = settings
        self._act = act
        self._half_range = (high - low) / 2
        self._path = replay.directory / "dynamic_capacity.json"
        self._looked_at = 0
        self._distance: float | None = None
        self._drops = 0
        self._dropped = 0
        self._writes = Tolerated(self._path.name)
        try:
            state = read_checked(self._path)
        except ValueError as error:
            _log.warning("replay: %s; the count of drops starts anew", error)
            state = None
        if state is not None:
            self._restore(state)

    @property
    def due(self) -> bool:
        """Whether a multiple of `period_steps` was passed by what was inserted since the last look."""
        period = self._settings.period_steps
        return self._replay.total_transitions // period > self._looked_at // period

    def look(self) -> None:
        """Measure the distance, drop the oldest if it is too large, and note both."""
        self._looked_at = self._replay.total_transitions
        self._measure_and_drop()
        self._writes.attempt(lambda: write_checked(self._path, self._state()))

    def status(self) -> DynamicCapacityStatus:
        """What is stored, the distance at the last look, and what was dropped; over all restarts."""
        return DynamicCapacityStatus(self._replay.transitions, self._distance, self._drops, self._dropped)

    def _measure_and_drop(self) -> None:
        replay, settings = self._replay, self._settings
        observations, greedy = replay.oldest_greedy_actions(settings.oldest)
        if not len(observations):
            return
        self._distance = self._policy_distance(observations, greedy)
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

    def _state(self) -> dict[str, Any]:
        return {
            "looked_at": self._looked_at,
            "distance": self._distance,
            "drops": self._drops,
            "dropped_transitions": self._dropped,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        # After a loss of power the store may have forgotten what was there at the last look.
        self._looked_at = min(state["looked_at"], self._replay.total_transitions)
        self._distance = state["distance"]
        self._drops, self._dropped = state["drops"], state["dropped_transitions"]

    def _policy_distance(self, observations: Array, greedy: Array) -> float:
        total = 0.0
        for start in range(0, len(greedy), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            difference = self._act(observations[rows]).astype(np.float64) - greedy[rows].astype(np.float64)
            difference /= self._half_range
            total += float(np.square(difference).sum())
        return total / (2 * greedy.size)
