"""A drone that keeps its height, as a Gymnasium environment."""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

_SECONDS = 0.1
_HIGHEST = 2.0


class Hover(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Push down, do nothing, or push up.

    Observations are height and speed, float32[2]. The reward of a step is 1 at height 0, and less above and below.
    """

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._height = self._speed = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin at a random height, at rest."""
        super().reset(seed=seed)
        self._height, self._speed = float(self.np_random.uniform(-1, 1)), 0.0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Push for a tenth of a second."""
        self._speed += _SECONDS * (int(action) - 1)
        self._height += _SECONDS * self._speed
        crashed = abs(self._height) > _HIGHEST
        return self._observation(), 1.0 - abs(self._height), crashed, False, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self._height, self._speed], np.float32)


gymnasium.register("Hover-v0", "hover.environment:Hover", max_episode_steps=200, reward_threshold=180)
