"""Recognizes environments with goals, and computes their rewards for other goals."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actorq.domain.goals import Goal
from actorq.domain.limits import within_numbers
from actorq.errors import UserError
from actorq.text import one_line, reason_of

_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"
_KEYS = {"observation", _ACHIEVED, _DESIRED}
_REWARD, _TERMINATED = "compute_reward", "compute_terminated"
_WAY_OUT = "; --hindsight.copies 0 trains without it"

Function = Callable[[NDArray[Any], NDArray[Any], dict[str, Any]], Any]


def goal_of(environment_id: str, environment: gymnasium.Env[Any, Any]) -> Goal | None:
    """The positions of the goals in the flattened observations; None for an environment without goals.

    environment: before its observations are flattened.

    An environment has goals if its observations are a Dict of the boxes `observation`, `achieved_goal` and
    `desired_goal`, and it has `compute_reward`. Raises UserError when the two goals have different shapes.
    """
    space = environment.observation_space
    if not (isinstance(space, spaces.Dict) and space.spaces.keys() == _KEYS and environment.has_wrapper_attr(_REWARD)):
        return None
    if not all(isinstance(part, spaces.Box) for part in space.values()):
        return None
    achieved, desired = space[_ACHIEVED], space[_DESIRED]
    if achieved.shape != desired.shape:
        raise UserError(
            f"environment {environment_id}: {_ACHIEVED} and {_DESIRED} must have one shape, got "
            f"{list(achieved.shape or ())} and {list(desired.shape or ())}; to train without hindsight, give "
            "--environment-wrappers gymnasium.wrappers:FlattenObservation"
        )
    first, starts = 0, dict[str, int]()
    for name, part in space.items():
        starts[name] = first
        first += spaces.flatdim(part)
    return Goal(starts[_ACHIEVED], starts[_DESIRED], spaces.flatdim(achieved))


class GoalRewards:
    """Calls the environment's own `compute_reward`, and `compute_terminated` if it exists, with many goals at once.

    A function that does not accept many goals is called for each goal. The third argument, info, is empty.
    """

    def __init__(self, environment_id: str, environment: gymnasium.Env[Any, Any]) -> None:
        """environment: before its observations are flattened."""
        self._environment_id = environment_id
        self._shape = environment.observation_space[_DESIRED].shape  # type: ignore[index]
        names = filter(environment.has_wrapper_attr, (_REWARD, _TERMINATED))
        self._functions: dict[str, Function] = {name: environment.get_wrapper_attr(name) for name in names}
        self._one_by_one: set[str] = set()

    def __call__(
        self, achieved: NDArray[Any], desired: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Rewards float32[B] of B steps, and whether each ends its episode, bool[B].

        achieved: the goals that were achieved after the steps, [B, size]. desired: the goals to compare with, [B,
            size].

        The second result is None if the environment does not compute it. Raises UserError when one of the functions
        fails or returns no number within the limits.
        """
        rewards = self._values(_REWARD, achieved, desired).astype(np.float32)
        ends = self._values(_TERMINATED, achieved, desired).astype(np.bool_) if _TERMINATED in self._functions else None
        return rewards, ends

    def _values(self, name: str, achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[Any]:
        count = len(achieved)
        achieved, desired = (goals.reshape(count, *self._shape) for goals in (achieved, desired))
        values = None if name in self._one_by_one else self._all_at_once(name, achieved, desired)
        if values is None:
            self._one_by_one.add(name)
            function = self._functions[name]
            try:
                values = np.array([float(function(*goals, {})) for goals in zip(achieved, desired, strict=True)])
            except Exception as error:  # A user's environment may raise any exception.
                reason = one_line(f"{type(error).__name__}: {reason_of(error)}")
                raise UserError(f"environment {self._environment_id}: {name} has failed: {reason}{_WAY_OUT}") from error
        if not (good := within_numbers(values)).all():
            raise UserError(
                f"environment {self._environment_id}: {name} must return finite numbers, got {values[~good][0]}"
                f"{_WAY_OUT}"
            )
        return values

    def _all_at_once(self, name: str, achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[Any] | None:
        """The values of one call for all goals, float64[B]; None if the function does not accept many goals."""
        try:
            values = np.asarray(self._functions[name](achieved, desired, {}))
            return values.astype(np.float64) if values.shape == (len(achieved),) else None
        except Exception:
            return None
