"""Environments that show only positions: velocities must be remembered."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class WithoutVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows only the components of an observation with these indices."""

    def __init__(self, env: gymnasium.Env[Any, Any], shown: tuple[int, ...] = (0, 2)) -> None:
        super().__init__(env)
        whole = env.observation_space
        assert isinstance(whole, spaces.Box)
        self._shown = list(shown)
        self.observation_space = spaces.Box(whole.low[self._shown], whole.high[self._shown], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """The shown components."""
        return np.asarray(observation, np.float32)[self._shown]
