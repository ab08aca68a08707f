"""Environments with goals and a reward only at the goal, which random actions rarely reach.

`benchmarks.environments.goals_coded:Bits-v0`: the actions flip single bits, and the goal is a vector of bits
(Andrychowicz et al. 2017, arXiv 1707.01495, section 3.1). `...:Reach-v0`: the actions move a point in a cube, and the
goal is another point.
"""

from abc import abstractmethod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

BITS = 8
# Dimensions of the point, and steps of its episodes.
DIMENSIONS, STEPS = 3, 50
_NEAR, _SPEED = 0.1, 0.1

Goals = NDArray[np.float32]
Observation = dict[str, Goals]


class _Goals(gymnasium.Env[Any, Any]):
    """Has a state that is also the achieved goal. The reward is 0 at the goal, which ends the episode, and else -1."""

    def __init__(self, low: float, high: float, size: int) -> None:
        part = spaces.Box(low, high, (size,), np.float32)
        self.observation_space = spaces.Dict({"observation": part, "achieved_goal": part, "desired_goal": part})
        self._state = self._desired = np.zeros(size, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode with another state and another goal."""
        super().reset(seed=seed)
        self._state, self._desired = self._drawn(), self._drawn()
        while self._is_at(self._state, self._desired):
            self._desired = self._drawn()
        return self._observation(), {"is_success": False}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Change the state."""
        self._state = self._changed(action)
        is_success = bool(self._is_at(self._state, self._desired))
        return self._observation(), float(is_success) - 1.0, is_success, False, {"is_success": is_success}

    def compute_reward(self, achieved: Goals, desired: Goals, info: Any) -> Any:
        """The rewards of steps with these achieved and desired goals."""
        return self._is_at(achieved, desired).astype(np.float32) - 1

    def compute_terminated(self, achieved: Goals, desired: Goals, info: Any) -> Any:
        """Whether these steps end the episode."""
        return self._is_at(achieved, desired)

    def _observation(self) -> Observation:
        return {"observation": self._state, "achieved_goal": self._state, "desired_goal": self._desired}

    @abstractmethod
    def _is_at(self, achieved: Goals, desired: Goals) -> Any:
        """Whether goals [..., size] are equal, bool[...]."""

    @abstractmethod
    def _drawn(self) -> Goals:
        """A random state."""

    @abstractmethod
    def _changed(self, action: Any) -> Goals:
        """The state after an action."""


class Bits(_Goals):
    """Each action flips one of the bits."""

    def __init__(self, bits: int = BITS) -> None:
        super().__init__(0.0, 1.0, bits)
        self.action_space = spaces.Discrete(bits)

    def _is_at(self, achieved: Goals, desired: Goals) -> Any:
        return (achieved == desired).all(axis=-1)

    def _drawn(self) -> Goals:
        return self.np_random.integers(2, size=self._state.shape).astype(np.float32)

    def _changed(self, action: Any) -> Goals:
        changed = self._state.copy()
        changed[action] = 1 - changed[action]
        return changed


class Reach(_Goals):
    """Each action moves the point by at most `_SPEED` in each of its dimensions."""

    def __init__(self, dimensions: int = DIMENSIONS) -> None:
        super().__init__(-1.0, 1.0, dimensions)
        self.action_space = spaces.Box(-1.0, 1.0, (dimensions,), np.float32)

    def _is_at(self, achieved: Goals, desired: Goals) -> Any:
        return np.linalg.norm(achieved - desired, axis=-1) < _NEAR

    def _drawn(self) -> Goals:
        return self.np_random.uniform(-1, 1, self._state.shape).astype(np.float32)

    def _changed(self, action: Any) -> Goals:
        changed: Goals = np.clip(self._state + _SPEED * np.asarray(action, np.float32), -1.0, 1.0, dtype=np.float32)
        return changed


gymnasium.register("Bits-v0", entry_point=f"{__name__}:Bits", max_episode_steps=BITS)
gymnasium.register("Reach-v0", entry_point=f"{__name__}:Reach", max_episode_steps=STEPS)
