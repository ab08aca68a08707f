"""A task of the DM Control suite as a Gymnasium environment, for libraries that need one."""

import importlib
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

PREFIX = "dm_control/"


class SuiteTask(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """`dm_control/DOMAIN-TASK`, such as dm_control/walker-walk.

    An observation is one float32 vector of the task's parts, in the task's order. An episode whose last discount is 0
    is terminated, any other is truncated. Both are as in ActorQ.
    """

    def __init__(self, environment_id: str) -> None:
        domain, _, name = environment_id.removeprefix(PREFIX).partition("-")
        self._task = importlib.import_module("dm_control.suite").load(domain, name)
        size = sum(int(np.prod(part.shape)) for part in self._task.observation_spec().values())
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        action = self._task.action_spec()
        self.action_space = gymnasium.spaces.Box(
            np.broadcast_to(action.minimum, action.shape).astype(np.float32),
            np.broadcast_to(action.maximum, action.shape).astype(np.float32),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode. A seed sets the generator of the task's first states."""
        super().reset(seed=seed)
        if seed is not None:
            self._task.task.random.seed(seed)
        return _vector(self._task.reset().observation), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Act for one control step."""
        found = self._task.step(action)
        terminated = bool(found.last() and found.discount == 0.0)
        return _vector(found.observation), float(found.reward), terminated, bool(found.last() and not terminated), {}


def _vector(parts: dict[str, Any]) -> NDArray[np.float32]:
    return np.concatenate([np.ravel(part) for part in parts.values()]).astype(np.float32)
