"""How actors explore: every environment with a rate of its own."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class EpsilonGreedy:
    """With probability epsilon_i a uniformly random action in environment i, else the one of highest value."""

    def __init__(self, epsilons: Sequence[float], actions: int, rng: np.random.Generator) -> None:
        self._epsilons = np.asarray(epsilons)
        self._actions = actions
        self._rng = rng

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.int64]:
        """Choose actions int64[N] from action values float32[N, actions]."""
        greedy = values.argmax(axis=1)
        explore = self._rng.random(len(greedy)) < self._epsilons
        return np.where(explore, self._rng.integers(self._actions, size=len(greedy)), greedy)
