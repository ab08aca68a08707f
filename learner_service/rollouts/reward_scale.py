"""Scales rewards by the running standard deviation of discounted returns, as vectorized PPO does."""

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner_service.replay import ObservationMoments

# Bound of scaled rewards, and the smallest variance (Huang et al. 2022, "The 37 Implementation Details of PPO").
_CLIP = 10.0
_LEAST_VARIANCE = 1e-8
# Maximum number of environments whose returns continue from one rollout to the next. Other returns start again at 0.
_MOST_ENVIRONMENTS = 2**16

Source = tuple[bytes, int]
"""Actor key and incarnation."""


class RewardScale:
    """Divides rewards by the deviation of R_t = discount * R_{t-1} + r_t over all environments and steps so far.

    R starts at 0 in each episode. The scaled rewards are clipped to [-10, 10]. Not thread-safe.
    """

    def __init__(self, discount: float) -> None:
        self._discount = discount
        self._moments = ObservationMoments(())
        # The next sequence number of each actor, and R float64[N] before it; the oldest actor first.
        self._going: OrderedDict[Source, tuple[int, NDArray[np.float64]]] = OrderedDict()

    def update(
        self,
        source: Source,
        sequences: range,
        rewards: NDArray[np.float32],
        valid: NDArray[np.bool_],
        ends: NDArray[np.bool_],
    ) -> None:
        """Count consecutive steps of an actor's environments, [T, N] each.

        sequences: of their segments. If the segment before the first is not the last one counted, R starts at 0.
        ends: whether the episode ends with the step.
        """
        expected, returns = self._going.pop(source, (None, None))
        if expected != sequences.start or returns is None or len(returns) != rewards.shape[1]:
            returns = np.zeros(rewards.shape[1])
        counted = np.empty(rewards.shape)
        for step, reward in enumerate(rewards):
            returns = self._discount * returns + reward
            counted[step] = returns
            returns = np.where(ends[step] | ~valid[step], 0.0, returns)
        self._moments.add(counted[valid], 0)
        self._going[source] = (sequences.stop, returns)
        while sum(len(kept) for _, kept in self._going.values()) > _MOST_ENVIRONMENTS and len(self._going) > 1:
            self._going.popitem(last=False)

    def scaled(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rewards by the present deviation, clipped."""
        deviation = np.sqrt(np.square(self._moments.std) + _LEAST_VARIANCE)
        return np.clip(rewards / deviation, -_CLIP, _CLIP).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        going = [[key.hex(), life, next_, kept.tolist()] for (key, life), (next_, kept) in self._going.items()]
        return {"moments": self._moments.state(), "going": going}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._moments.load_state(state["moments"], 0)
        self._going.clear()
        for key, life, next_, kept in state["going"]:
            self._going[bytes.fromhex(key), life] = (next_, np.array(kept, np.float64))

    def begin_from(self, state: dict[str, Any]) -> None:
        """Take the deviation of another run's `state`, without the returns of its unfinished episodes."""
        self._moments.load_state(state["moments"], 0)
