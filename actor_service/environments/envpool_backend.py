"""EnvPool (arXiv 2206.10558): C++ versions of the same tasks, stepped on several threads.

EnvPool has the same next-step autoreset as ActorQ. Its rewards at the resetting step are invalid. A pool's seeds are
fixed when it is made, so `reset` makes a new pool.
"""

import logging
import math
import os
import warnings
from typing import Any

import envpool
import gymnasium
import numpy as np
from numpy.typing import NDArray

from actor_service.environments import describe_environment
from actor_service.environments.dm_control_backend import observation_parts
from actor_service.environments.failures import MOST_FAULTS
from actor_service.environments.interface import OUT_OF_RANGE, Environments, Fault, Step
from actor_service.environments.spaces.actions import action_spec
from actor_service.environments.step_columns import StepColumns
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.limits import within_numbers
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import ActorQError, UserError

_log = logging.getLogger(__name__)

_SUITE, _ATARI = "dm_control/", "ALE/"
# EnvPool draws its own random models of lqr, so they cannot be compared with the suite step by step. All other domains
# were compared.
_NOT_COMPARED = "dm_control/lqr-"
# EnvPool's threads get each action from a shared queue, in about a microsecond. A second thread slows down cheaper
# steps.
_CHEAP = "gymnasium.envs.classic_control"
# The settings of version 5 of the games in the Arcade Learning Environment. EnvPool's other defaults are the same.
_ATARI_SETTINGS = {
    "stack_num": 1,
    "frame_skip": 4,
    "noop_max": 30,
    "use_fire_reset": False,
    "episodic_life": False,
    "reward_clip": False,
    "full_action_space": False,
    "repeat_action_probability": 0.25,
    "use_inter_area_resize": True,
}


def make(environment_id: str, count: int, rendered: bool, /, **keywords: Any) -> "PooledEnvironments":
    """A pool of a task. Raises UserError when EnvPool lacks the task, or has a different task under its name.

    The spec comes from the task's own library, so that actors with and without EnvPool can serve one run. Both
    libraries must accept the keyword arguments.
    """
    if rendered:
        raise UserError(f"environment {environment_id}: EnvPool cannot render; leave --environment-backend out")
    task = task_name(environment_id)
    if task not in envpool.list_all_envs():
        raise UserError(
            f"environment {environment_id!r} cannot be made: EnvPool has no {task}; leave --environment-backend out"
        )
    if environment_id.startswith(_NOT_COMPARED):
        raise UserError(
            f"environment {environment_id}: the EnvPool version is not verified against DM Control, because its models "
            "are random; leave --environment-backend out"
        )
    spec = describe_environment(environment_id, arguments=EnvironmentArguments(keywords))
    parts = observation_parts(environment_id, keywords) if environment_id.startswith(_SUITE) else ()
    settings = _ATARI_SETTINGS if environment_id.startswith(_ATARI) else {}
    settings = {**settings, **keywords, "num_threads": _threads(environment_id, count)}
    return PooledEnvironments(spec, task, settings, parts, count)


def task_name(environment_id: str) -> str:
    """EnvPool's name of a task: DM Control's domain and task in CamelCase, a game without its namespace."""
    if environment_id.startswith(_SUITE):
        words = environment_id.removeprefix(_SUITE).replace("-", "_").split("_")
        return "".join(word[:1].upper() + word[1:] for word in words) + "-v1"
    return environment_id.removeprefix(_ATARI)


def _threads(environment_id: str, count: int) -> int:
    """Number of threads: the processors of this process, or one if a step is cheaper than its transfer to a thread."""
    single = environment_id in gymnasium.registry and str(gymnasium.spec(environment_id).entry_point).startswith(_CHEAP)
    return 1 if single else min(count, len(os.sched_getaffinity(0)))


class PooledEnvironments(Environments):
    """A batch in one pool. A value `OUT_OF_RANGE` resets its environment. An error recreates the whole pool."""

    def __init__(
        self, spec: EnvironmentSpec, task: str, settings: dict[str, Any], parts: tuple[str, ...], count: int
    ) -> None:
        super().__init__(spec, count)
        self._task, self._settings, self._parts = task, settings, parts
        self._pool = self._make(seed=0)
        self._check(self._pool)
        self._dtype = np.dtype(np.int32) if spec.sizes else np.dtype(self._pool.action_space.dtype)
        self._columns = StepColumns(spec.observations, self.lengths)
        self._rows = self._columns.observations.reshape(count, -1)
        self._ended: list[int] = []
        self._faults_in_a_row = 0
        self._seeds = np.random.default_rng()

    def reset(self, seed: int) -> NDArray[Any]:
        """Make a new pool. Environment i gets the seed `seed + i`."""
        self._seeds = np.random.default_rng(seed)
        self._begin(self._make(seed))
        return self._columns.observations

    def step(self, actions: NDArray[Any]) -> Step:
        """Take one action in each environment, on EnvPool's threads."""
        columns = self._columns
        try:
            observations, rewards, terminated, truncated, _ = self._pool.step(actions.astype(self._dtype))
        except Exception as error:
            return self._restart(error)
        columns.rewards[:] = rewards
        columns.rewards[self._ended] = 0.0
        columns.terminated[:], columns.truncated[:] = terminated, truncated
        endings = [int(index) for index in np.flatnonzero(terminated | truncated) if index not in self._ended]
        self._copy_observations(observations)
        broken = columns.broken()
        if broken:
            endings = [index for index in endings if index not in broken]
            self._mend(broken)
        else:
            self._faults_in_a_row = 0
        faults = tuple(Fault(index, OUT_OF_RANGE, restarted=False) for index in broken)
        step = columns.finish([index for index in self._ended if index not in broken], endings, faults)
        self._ended = endings
        return step

    def close(self) -> None:
        """Release the pool."""
        self._pool.close()

    def _make(self, seed: int) -> Any:
        return envpool.make_gymnasium(self._task, num_envs=self.count, seed=seed, **self._settings)

    def _check(self, pool: Any) -> None:
        """Raise UserError unless the pool's spaces and step limit equal those of the task's own library."""
        spec = self.spec
        limit = int(pool.spec.config.max_episode_steps)
        with warnings.catch_warnings():
            # Gymnasium warns that EnvPool gives float64 bounds of float32 spaces. The bounds are not used.
            warnings.simplefilter("ignore")
            space, actions = pool.observation_space, pool.action_space
        parts = space.spaces.values() if self._parts else (space,)
        size = sum(int(np.prod(part.shape, dtype=np.int64)) for part in parts)
        expected = math.prod(spec.observations.shape)
        fits = size >= expected if self._parts else size == expected
        if action_spec(spec.environment_id, actions) != (spec.actions, spec.sizes) or not fits:
            raise UserError(
                f"environment {spec.environment_id}: EnvPool's version has other spaces; leave "
                "--environment-backend out"
            )
        if limit != spec.max_episode_steps:
            raise UserError(
                f"environment {spec.environment_id}: EnvPool ends its episodes after {limit} steps instead of "
                f"{spec.max_episode_steps}; leave --environment-backend out"
            )

    def _begin(self, pool: Any) -> None:
        self._pool = pool
        self._copy_observations(pool.reset()[0])
        self._columns.begin()
        self._ended = []

    def _copy_observations(self, observations: Any) -> None:
        np.concatenate(self._columns_of(observations, self.count), axis=1, out=self._rows, casting="same_kind")

    def _columns_of(self, observations: Any, count: int) -> list[NDArray[Any]]:
        """The pool's observations as arrays [count, size] to concatenate.

        For a DM Control task, EnvPool returns the observations of all tasks of the domain. Only the observations of
        this task are used.
        """
        parts = [observations[name] for name in self._parts] if self._parts else [observations]
        return [part.reshape(count, -1) for part in parts]

    def _mend(self, broken: list[int]) -> None:
        """Begin new episodes in the environments with a value out of range."""
        what = f"environments {broken} of {self.spec.environment_id}: {OUT_OF_RANGE}"
        while broken:
            self._count_fault(what)
            observations = self._pool.reset(np.array(broken, np.int32))[0]
            self._rows[broken] = np.concatenate(self._columns_of(observations, len(broken)), axis=1)
            broken = [index for index in broken if not within_numbers(self._rows[index]).all()]

    def _restart(self, error: Exception) -> Step:
        """Recreate the pool. The current step of all environments is lost."""
        what = f"{type(error).__name__}: {error}"
        self._count_fault(what, error)
        self._begin(self._make(int(self._seeds.integers(2**31))))
        faults = tuple(Fault(index, what, restarted=True) for index in range(self.count))
        return self._columns.finish((), (), faults)

    def _count_fault(self, what: str, cause: BaseException | None = None) -> None:
        self._faults_in_a_row += 1
        _log.warning("EnvPool: %s", what)
        if self._faults_in_a_row >= MOST_FAULTS:
            raise ActorQError(
                f"environment {self.spec.environment_id} failed {MOST_FAULTS} times in a row; the last time: {what}"
            ) from cause
