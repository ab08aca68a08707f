"""Scales rewards by the running standard deviation of discounted returns, for vectorized PPO and for XQC."""

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learner_service.replay.moments import ObservationMoments

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

    bound: of |R_t| after a division by `divisor`; None for no bound.
    """

    def __init__(self, discount: float, bound: float | None = None) -> None:
        self._discount, self._bound = discount, bound
        self._moments = ObservationMoments(())
        self._largest = 0.0
        # The next sequence number of each actor, and R float64[N] before it; the oldest actor first.
        self._going: OrderedDict[Source, tuple[int, NDArray[np.float64]]] = OrderedDict()

    def update(
        self,
        source: Source,
        sequences: range,
        rewards: NDArray[np.float32],
        valid: NDArray[np.bool_],
        ends: NDArray[np.bool_],
        through: int = 0,
    ) -> None:
        """Count consecutive steps of an actor's environments, [T, N] each.

        sequences: of their segments. If the segment before the first is not the last one counted, R starts at 0.
        ends: whether the episode ends with the step. through: total transitions of the store up to these.
        """
        expected, returns = self._going.pop(source, (None, None))
        if expected != sequences.start or returns is None or len(returns) != rewards.shape[1]:
            returns = np.zeros(rewards.shape[1])
        counted = np.empty(rewards.shape)
        for step, reward in enumerate(rewards):
            returns = self._discount * returns + reward
            counted[step] = returns
            returns = np.where(ends[step] | ~valid[step], 0.0, returns)
        self._moments.add(counted[valid], through)
        self._largest = max(self._largest, float(np.abs(counted[valid]).max(initial=0.0)))
        self._going[source] = (sequences.stop, returns)
        while sum(len(kept) for _, kept in self._going.values()) > _MOST_ENVIRONMENTS and len(self._going) > 1:
            self._going.popitem(last=False)

    def scaled(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rewards by the present deviation, clipped."""
        return np.clip(rewards / self._deviation, -_CLIP, _CLIP).astype(np.float32)

    @property
    def divisor(self) -> float:
        """max(deviation, largest |R_t| / bound): the divisor of rewards of arXiv 2604.04539."""
        deviation = float(self._deviation)
        return deviation if self._bound is None else max(deviation, self._largest / self._bound)

    @property
    def through(self) -> int:
        """Total transitions of the store up to the last counted one."""
        return self._moments.through

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        going = [[key.hex(), life, next_, kept.tolist()] for (key, life), (next_, kept) in self._going.items()]
        return {"moments": self._moments.state(), "going": going, "largest": self._largest}

    def load_state(self, state: dict[str, Any], stored: int = 0) -> None:
        """Restore what `state` returned. stored: total transitions of the store."""
        self._moments.load_state(state["moments"], stored)
        # Older checkpoints do not have it.
        self._largest = state.get("largest", 0.0)
        self._going.clear()
        for key, life, next_, kept in state["going"]:
            self._going[bytes.fromhex(key), life] = (next_, np.array(kept, np.float64))

    def begin_from(self, state: dict[str, Any]) -> None:
        """Take the deviation of another run's `state`, without the returns of its unfinished episodes."""
        self._moments.load_state(state["moments"], 0)
        self._largest = state.get("largest", 0.0)

    @property
    def _deviation(self) -> NDArray[np.float64]:
        return np.sqrt(np.square(self._moments.std) + _LEAST_VARIANCE)
