"""Environments by id, stepped as one batch, with their spec for the learner.

Episodes reset at the step after they ended (next-step autoreset): that step's action is ignored, and its observation
is the first of the new episode. So the observation before it is the final one of the old episode, and a column of
observations holds everything once.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from actorq.errors import UserError
from actorq.trajectory import ArraySpec, EnvironmentSpec, Episode


def describe_environment(environment_id: str) -> EnvironmentSpec:
    """The spec of an environment; raises UserError when there is none of this id or its spaces are not supported."""
    environment = _make(environment_id)
    try:
        observations, actions = environment.observation_space, environment.action_space
        if not isinstance(observations, spaces.Box):
            raise UserError(f"environment {environment_id}: observations must be a Box, got {observations}")
        if not isinstance(actions, spaces.Discrete | spaces.Box):
            raise UserError(f"environment {environment_id}: actions must be Discrete or a Box, got {actions}")
        if isinstance(actions, spaces.Discrete) and int(actions.start) != 0:
            raise UserError(f"environment {environment_id}: discrete actions must start at 0, got {actions.start}")
        spec = environment.spec
        return EnvironmentSpec(
            environment_id=environment_id,
            observations=_array_spec(observations),
            actions=_array_spec(actions) if isinstance(actions, spaces.Box) else ArraySpec((), "int64"),
            discrete_actions=int(actions.n) if isinstance(actions, spaces.Discrete) else 0,
            max_episode_steps=(spec.max_episode_steps if spec else None) or 0,
            reward_threshold=spec.reward_threshold if spec else None,
        )
    finally:
        environment.close()


@dataclass(frozen=True)
class Step:
    """What one step of N environments gave.

    observations: [N, *observation], after the step
    rewards:      float32[N]
    terminated, truncated, valid: bool[N], as in `actorq.trajectory.Segment`
    episodes:     those that ended with this step
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    episodes: tuple[Episode, ...]


class Environments:
    """N environments of one id. `reset` once, then `step` for ever; episodes start over by themselves."""

    def __init__(self, environment_id: str, count: int) -> None:
        self.count = count
        self._batch = SyncVectorEnv(
            [lambda: _make(environment_id) for _ in range(count)], autoreset_mode=AutoresetMode.NEXT_STEP
        )
        self._ended = np.zeros(count, np.bool_)
        self._returns = np.zeros(count)
        self._lengths = np.zeros(count, np.int64)

    def reset(self, seed: int) -> NDArray[Any]:
        """Start new episodes in all environments and return their observations [N, *observation]."""
        self._ended[:] = False
        self._returns[:] = 0
        self._lengths[:] = 0
        observations: NDArray[Any] = self._batch.reset(seed=seed)[0]
        return observations

    def step(self, actions: NDArray[Any]) -> Step:
        """Take one action in each environment."""
        observations, rewards, terminated, truncated, _ = self._batch.step(actions)
        valid = ~self._ended
        self._returns += np.where(valid, rewards, 0.0)
        self._lengths += valid
        self._ended = (terminated | truncated) & valid
        episodes = tuple(self._finish_episode(int(index)) for index in np.flatnonzero(self._ended))
        return Step(observations, rewards.astype(np.float32), terminated & valid, truncated & valid, valid, episodes)

    def close(self) -> None:
        """Release the environments."""
        self._batch.close()

    def _finish_episode(self, index: int) -> Episode:
        episode = Episode(float(self._returns[index]), int(self._lengths[index]), index)
        self._returns[index] = 0.0
        self._lengths[index] = 0
        return episode


def _make(environment_id: str) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(environment_id)
    except (gymnasium.error.Error, ImportError, ModuleNotFoundError) as error:
        raise UserError(
            f"environment {environment_id!r} cannot be made: {' '.join(str(error).split())}; "
            "give the id of an installed environment, such as CartPole-v1"
        ) from None


def _array_spec(space: spaces.Box) -> ArraySpec:
    return ArraySpec(tuple(space.shape), space.dtype.name, _bound(space.low), _bound(space.high))


def _bound(values: NDArray[Any]) -> tuple[float, ...]:
    """One value where all are equal, else all of them; empty where one is infinite."""
    if not np.isfinite(values).all():
        return ()
    distinct = np.unique(values)
    return tuple(map(float, distinct if distinct.size == 1 else values.ravel()))
