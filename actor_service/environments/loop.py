"""Steps environments of Python libraries one after the other."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.failures import (
    FAILURES,
    FaultLimits,
    MisfitError,
    failure_text,
    kind_of,
    observation_of_reset,
)
from actor_service.environments.interface import OUT_OF_RANGE, Environments, Fault, Step
from actor_service.environments.step_columns import StepColumns
from actorq.domain.limits import within_numbers
from actorq.domain.spaces import EnvironmentSpec

_log = logging.getLogger(__name__)


class _Single(Protocol):
    """One environment, with Gymnasium's signatures, so that Gymnasium environments need no adapter.

    metadata: render_fps is the number of steps in one second of simulated time.
    reset: returns the first observation and info. A seed resets the environment's randomness.
    step: returns observation, reward, terminated, truncated and info.
    render: returns a picture of the current state, uint8[height, width, 3].
    """

    metadata: dict[str, Any]

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]: ...
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]: ...
    def render(self) -> Any: ...
    def close(self) -> None: ...


class LoopedEnvironments(Environments):
    """A batch of single environments.

    An environment is closed and recreated when it raises an exception, or when a value does not fit its spaces. A value
    `OUT_OF_RANGE` resets it. The step lists both as faults. Too many raise an error: see `FaultLimits`.

    make: makes one environment.
    limit: steps after which an episode is truncated; 0 if the environments truncate it. Replaces Gymnasium's TimeLimit,
        which costs as much as a step of CartPole's physics.
    """

    def __init__(
        self, spec: EnvironmentSpec, singles: Sequence[_Single], make: Callable[[], _Single], limit: int
    ) -> None:
        super().__init__(spec, len(singles))
        self._singles = list(singles)
        self.steps_per_second = float(singles[0].metadata.get("render_fps") or self.steps_per_second)
        self._steps = [single.step for single in singles]
        self._make = make
        self._limit = limit
        # No episode can reach the limit within this many steps, so lengths are not compared before.
        self._spare = 0
        self._discrete = bool(spec.sizes)
        self._columns = StepColumns(spec.observations, self.lengths)
        self._ended: list[int] = []
        self._faults = FaultLimits(spec.environment_id, self.count)
        # Infos of the last step of each environment.
        self._infos: list[Any] = [None] * self.count
        self._seeds = np.random.default_rng()

    def reset(self, seed: int) -> NDArray[Any]:
        """Start new episodes. Environment i gets the seed `seed + i`."""
        # Seeds for recreated environments.
        self._seeds = np.random.default_rng(seed)
        self._columns.begin()
        self._ended, self._spare = [], 0
        for index in range(self.count):
            self._columns.observations[index] = self._first_observation(index, seed + index)
        return self._columns.observations

    def step(self, actions: NDArray[Any]) -> Step:
        """Take one action in each environment. Each environment gets a copy of its action, which it may change."""
        columns, ended, infos = self._columns, self._ended, self._infos
        observations: list[Any] = [None] * self.count
        rewards: list[Any] = [0.0] * self.count
        endings: list[int] = []
        faults: list[Fault] = []
        for index, (act, action) in enumerate(
            zip(self._steps, actions.tolist() if self._discrete else actions.copy(), strict=True)
        ):
            try:
                if ended and index in ended:
                    observations[index] = observation_of_reset(self._singles[index].reset())
                    continue
                observations[index], rewards[index], terminated, truncated, infos[index] = act(action)
                if terminated or truncated:
                    endings.append(index)
                    columns.terminated[index], columns.truncated[index] = terminated, truncated
            except FAILURES as error:
                observations[index], rewards[index] = self._restart(index, error), 0.0
                faults.append(Fault(index, failure_text(error), restarted=True, error=error))
        try:
            columns.rewards[:] = rewards
            np.concatenate(observations, out=columns.flat, casting="same_kind")
        except Exception:  # A value of an unknown type may raise any exception when it is converted.
            faults += self._replace_misfits(observations, rewards)
            columns.rewards[:] = rewards
            np.concatenate(observations, out=columns.flat, casting="same_kind")
        for index in columns.broken():
            faults.append(self._mend(index, f"observation {observations[index]!r}, reward {rewards[index]!r}"))
        if self._limit:
            self._spare -= 1
            if self._spare < 0:
                self._cut_at_limit(endings)
        if faults:
            lost = {fault.environment for fault in faults}
            endings = [index for index in endings if index not in lost]
        step = columns.finish(ended, endings, tuple(faults), infos)
        self._faults.settle({fault.environment for fault in faults})
        self._ended = endings
        return step

    def render(self, index: int) -> NDArray[np.uint8]:
        """A picture by the environment's own `render`, uint8[height, width, 3]."""
        return np.asarray(self._singles[index].render())

    def close(self) -> None:
        """Close all environments, even when one of them fails to close."""
        for index, single in enumerate(self._singles):
            try:
                single.close()
            except FAILURES as error:
                _log.warning(
                    *("environment %d of %s failed to close: %s", index, self.spec.environment_id, failure_text(error))
                )

    def _cut_at_limit(self, endings: list[int]) -> None:
        # The lengths do not include this step. An environment that resets now still has its old episode's length.
        for index in np.flatnonzero(self.lengths == self._limit - 1):
            if index not in endings and index not in self._ended:
                endings.append(int(index))
            if index not in self._ended:
                self._columns.truncated[index] = True
        self._spare = self._limit - 2 - int(self.lengths.max())

    def _mend(self, index: int, what: str) -> Fault:
        """Begin a new episode in an environment with a value out of range."""
        self._faults.count(index, f"{OUT_OF_RANGE}: {what}")
        broken = self._singles[index]
        self._columns.observations[index] = self._first_observation(index, None)
        return Fault(index, OUT_OF_RANGE, restarted=self._singles[index] is not broken)

    def _replace_misfits(self, observations: list[Any], rewards: list[Any]) -> list[Fault]:
        """Recreate the environments whose observation or reward has a wrong shape or type."""
        faults = []
        for index, observation in enumerate(observations):
            try:
                self._fitting(observation)
                if np.shape(rewards[index]) != ():
                    raise MisfitError(f"a reward must be a number, got {rewards[index]!r}")
                float(rewards[index])
            except Exception as error:
                observations[index], rewards[index] = self._restart(index, error), 0.0
                faults.append(Fault(index, failure_text(error), restarted=True, error=error))
        return faults

    def _fitting(self, observation: Any) -> NDArray[Any]:
        """The observation as an array. Raises MisfitError when its shape or its kind of number is wrong."""
        array, expected = np.asarray(observation), self._columns.observations
        if array.shape != expected.shape[1:] or not np.can_cast(array.dtype, expected.dtype, "same_kind"):
            raise MisfitError(
                f"an observation must be {expected.dtype}{list(expected.shape[1:])} as its space says, got "
                f"{kind_of(array)}"
            )
        return array

    def _first_observation(self, index: int, seed: int | None) -> NDArray[Any]:
        """The first observation of a new episode. Retries after faults, and raises ActorQError after too many."""
        while True:
            try:
                observation = self._fitting(observation_of_reset(self._singles[index].reset(seed=seed)))
            except FAILURES as error:
                observation = self._restart(index, error)
            if self._columns.observations.dtype.kind != "f" or within_numbers(observation).all():
                return observation
            self._faults.count(index, f"{OUT_OF_RANGE} in the first observation of an episode")

    def _restart(self, index: int, error: BaseException) -> NDArray[Any]:
        """Recreate an environment and return its first observation."""
        while True:
            self._faults.count(index, failure_text(error), error)
            with suppress(*FAILURES):
                self._singles[index].close()
            try:
                single = self._make()
                self._singles[index], self._steps[index] = single, single.step
                return self._fitting(observation_of_reset(single.reset(seed=int(self._seeds.integers(2**31)))))
            except FAILURES as next_error:
                error = next_error
