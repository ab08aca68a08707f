"""Drops old transitions whose actions are far from the policy's (RLx2, arXiv 2205.15043, sec. 4.2)."""

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actorq.config.sparsity import DynamicCapacityConfig
from actorq.domain.columns import Array
from actorq.domain.status import DynamicCapacityStatus
from actorq.statefiles.tolerance import Tolerated
from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.storage.mapped_files import read_checked, write_checked

_log = logging.getLogger(__name__)

# Observations per forward pass, so that large observations need little memory as floats.
_ROWS_AT_ONCE = 256


class DynamicCapacity:
    """Compares the oldest transitions with the policy every `period_steps` inserts, and drops them if they are too far
    from it.

    K is the number of `oldest` transitions, or of all. g_i is the greedy action of the policy that acted in s_i, and
    pi(s_i) the action of the present policy. A is the number of components of an action, h half the range of each. The
    distance is

        D = 1/(2 K A) sum_{i<K} || (pi(s_i) - g_i) / h ||_2^2

    as in the paper's published code (docs/decisions/0012-policy-distance.md): half the mean squared difference of
    actions scaled to [-1, 1].

    If D is above `threshold`, the oldest `dropped` share of the replay is dropped at once, in whole segments. The last
    `min_size` transitions always stay. Otherwise nothing is dropped, and the replay grows up to its capacity.

    Dropped segments leave the store's files first, so a restarted learner does not see them again. Then the time of the
    check is written to a file in the same folder, independent of checkpoints. After a kill in between, the next learner
    checks again at once with its checkpoint's policy. It may drop a second share.

    act: the policy without noise, [B, *policy_observation] -> [B, *action]. The store must keep greedy actions.
    Call on the trainer's thread; `status` on any thread.
    """

    def __init__(self, replay: ReplayBuffer, settings: DynamicCapacityConfig, act: Callable[[Array], Array]) -> None:
        low, high = replay.spec.actions.bounds()
        self._replay = replay
        self._settings = settings
        self._act = act
        self._half_range = (high - low) / 2
        self._path = replay.directory / "dynamic_capacity.json"
        self._state: dict[str, Any] = {"looked_at": 0, "distance": None, "drops": 0, "dropped_transitions": 0}
        self._writes = Tolerated(self._path.name)
        try:
            if (state := read_checked(self._path)) is not None:
                # After a power cut the store may have lost transitions from before the last check.
                self._state = {**state, "looked_at": min(state["looked_at"], replay.total_transitions)}
        except ValueError as error:
            _log.warning("replay: %s; the count of drops starts at 0", error)

    @property
    def due(self) -> bool:
        """Whether inserts have passed a multiple of `period_steps` since the last check."""
        period = self._settings.period_steps
        return bool(self._replay.total_transitions // period > self._state["looked_at"] // period)

    def check(self) -> None:
        """Measure the distance, drop the oldest transitions if it is too large, and record both."""
        self._state["looked_at"] = self._replay.total_transitions
        self._measure_and_drop()
        self._writes.attempt(lambda: write_checked(self._path, self._state))

    def status(self) -> DynamicCapacityStatus:
        """Stored transitions, the distance at the last check, and dropped transitions over all restarts."""
        distance, drops, dropped = (self._state[name] for name in ("distance", "drops", "dropped_transitions"))
        return DynamicCapacityStatus(self._replay.transitions, distance, drops, dropped)

    def _measure_and_drop(self) -> None:
        replay, settings = self._replay, self._settings
        observations, greedy = replay.oldest_greedy_actions(settings.oldest)
        if not len(observations):
            return
        distance = self._state["distance"] = self._policy_distance(observations, greedy)
        if distance <= settings.threshold:
            return
        stored = replay.transitions
        dropped = replay.drop_oldest(math.ceil(settings.dropped * stored), settings.min_size)
        if dropped:
            self._state["drops"] += 1
            self._state["dropped_transitions"] += dropped
            _log.info(
                "replay: the policy's distance from the oldest actions is %.3f, above %g: dropped %d of %d transitions",
                *(distance, settings.threshold, dropped, stored),
            )

    def _policy_distance(self, observations: Array, greedy: Array) -> float:
        total = 0.0
        for start in range(0, len(greedy), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            difference = self._act(observations[rows]).astype(np.float64) - greedy[rows].astype(np.float64)
            difference /= self._half_range
            total += float(np.square(difference).sum())
        return total / (2 * greedy.size)
