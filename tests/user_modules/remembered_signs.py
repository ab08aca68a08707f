"""An environment that shows what counts only once, so that a policy without memory can only guess."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 10


class FirstSign(gymnasium.Env[Any, Any]):
    """The first observation is a random sign, and all later ones are 0.

    Each step rewards the choice that the sign names with 1, and the other choice with -1. The best return is 10.
    Without memory, a policy can know only the first choice, and its mean return is at most 1.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._sign = 0.0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with another sign."""
        super().reset(seed=seed)
        self._sign, self._step = float(self.np_random.choice((-1.0, 1.0))), 0
        return np.array([self._sign], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compare the choice with the sign."""
        reward = 1.0 if (int(action) == 1) == (self._sign > 0) else -1.0
        self._step += 1
        return np.zeros(1, np.float32), reward, False, self._step == STEPS, {}
