"""Environments with goals, good ones and broken ones, registered as `goal_environments:NAME-v0`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LIMIT = 5


class Line(gymnasium.Env[Any, Any]):
    """A position on a line, which actions 0 and 1 move by one. A step costs 1, except the one to the goal."""

    size = 1

    def __init__(self, length: int = LIMIT) -> None:
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(-9, 9, (2,), np.float32),
                "achieved_goal": spaces.Box(-9, 9, (1,), np.float32),
                "desired_goal": spaces.Box(-9, 9, (self.size,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(2)
        self._length = length
        self._place = self._steps = 0
        self._goal = 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self._steps = 0
        self._goal = int(self.np_random.integers(1, 4))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place += 2 * int(action) - 1
        self._steps += 1
        is_success = self._place == self._goal
        info = {"is_success": np.float32(is_success)}
        return self._observation(), float(is_success) - 1, is_success, self._steps == self._length, info

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (achieved == desired).all(axis=-1).astype(np.float64) - 1

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return (achieved == desired).all(axis=-1)

    def _observation(self) -> Any:
        place = np.array([self._place], np.float32)
        return {
            "observation": np.array([self._steps, self._place], np.float32),
            "achieved_goal": place,
            "desired_goal": np.full(self.size, self._goal, np.float32),
        }


class OneByOne(Line):
    """Takes one goal at a time, and tells of the end of an episode in the same way."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        if achieved.shape != (1,):
            raise ValueError("one goal at a time")
        return float(np.array_equal(achieved, desired)) - 1

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return bool(np.array_equal(achieved, desired))


class Untold(Line):
    """Does not compute whether a step ends the episode, nor tells of success."""

    def __getattribute__(self, name: str) -> Any:
        if name == "compute_terminated":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {})


class Uneven(Line):
    """Its goals have different shapes."""

    size = 2


class Failing(Line):
    """Its `compute_reward` raises."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        raise KeyError("speed")


class NotANumber(Line):
    """Its `compute_reward` returns NaN."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.full(len(achieved), np.nan)


for environment in (Line, OneByOne, Untold, Uneven, Failing, NotANumber):
    gymnasium.register(f"{environment.__name__}-v0", f"{__name__}:{environment.__name__}", max_episode_steps=LIMIT)
gymnasium.register("Endless-v0", f"{__name__}:Line", kwargs={"length": 10**9})
