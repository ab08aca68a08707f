"""Joins actions of several parts into one array, and refuses unsupported actions.

Discrete parts with few combinations become one discrete action. Other discrete parts stay separate.
"""

import itertools
import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actor_service.environments.spaces.observations import check_size, in_one_line, leaves_of
from actorq.domain.limits import LARGEST_NUMBER, MAX_DISCRETE_ACTIONS, MAX_PARTS
from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError

# Discrete parts with more combinations than this stay separate.
MOST_COMBINATIONS = 64
SUPPORTED_ACTIONS = (
    "Discrete, MultiDiscrete, MultiBinary, boxes of floats with bounds from "
    f"{-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, and Dict and Tuple of these"
)


class JointActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment whose actions are one array: the discrete parts as whole numbers, then the continuous parts.

    If the discrete parts have few combinations, each combination becomes one discrete action, in C order (the last part
    changes fastest).

    sizes: values of each discrete part. combined: whether they are one action.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._space = environment.action_space
        self.sizes = sizes_of(self._space)
        boxes = _boxes(self._space)
        most = MOST_COMBINATIONS if len(self.sizes) > 1 else MAX_DISCRETE_ACTIONS * len(self.sizes)
        self.combined = not boxes and math.prod(self.sizes) <= most
        # The environment's action of each combination.
        choices = itertools.product(*map(range, self.sizes)) if self.combined else ()
        self._table = [_composed(self._space, iter(choice), iter(())) for choice in choices]
        low, high = (
            np.concatenate([np.empty(0, np.float32), *(getattr(box, name).astype(np.float32).ravel() for box in boxes)])
            for name in ("low", "high")
        )
        count = np.array(self.sizes)
        if self.combined:
            self.action_space = spaces.Discrete(len(self._table))
        elif not boxes:
            self.action_space = spaces.MultiDiscrete(count)
        else:
            both = np.concatenate((0 * count, low)), np.concatenate((count - 1, high))
            self.action_space = spaces.Box(both[0].astype(np.float32), both[1].astype(np.float32))

    @property
    def text(self) -> str:
        """The parts, in words."""
        if isinstance(self._space, spaces.Discrete):
            return f"{self._space.start} to {self._space.start + self._space.n - 1}"
        if self.combined:
            return f"combinations of {' x '.join(map(str, self.sizes))}"
        if self.sizes:
            return ""
        return f"parts of {' + '.join(str(math.prod(box.shape)) for box in _boxes(self._space))}"

    def action(self, action: Any) -> Any:
        """The environment's own action."""
        if self.combined:
            return deepcopy(self._table[action])
        count = len(self.sizes)
        return _composed(self._space, iter(action[:count]), iter(action[count:]))


class BoundedActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """An environment whose unbounded actions get bounds from -bound to bound."""

    def __init__(self, environment: Any, bound: float = 1.0) -> None:
        super().__init__(environment)
        shape = environment.action_space.shape
        if not isinstance(environment.action_space, spaces.Box) or not 0 < bound <= LARGEST_NUMBER:
            raise UserError(
                f"BoundedActions: expected a Box of actions and a bound from 0 to {LARGEST_NUMBER:g}, got "
                f"{in_one_line(environment.action_space)} and {bound}"
            )
        self.action_space = spaces.Box(-bound, bound, shape, np.float32)

    def action(self, action: Any) -> Any:
        """The environment's own action."""
        return action


def with_one_action(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment with actions of one array, if its actions can be joined."""
    space = environment.action_space
    if _is_one(space) or not all(_is_part(leaf) for _, leaf in leaves_of(space)):
        return environment
    sizes = sizes_of(space)
    if len(sizes) > MAX_PARTS or (len(sizes) == 1 and sizes[0] > MAX_DISCRETE_ACTIONS):
        return environment
    return JointActions(environment)


def sizes_of(space: spaces.Space[Any]) -> tuple[int, ...]:
    """The number of values of each discrete part."""
    sizes: list[int] = []
    for _, leaf in leaves_of(space):
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += leaf.nvec.ravel().tolist()
        elif isinstance(leaf, spaces.MultiBinary):
            sizes += [2] * math.prod(leaf.shape)
    return tuple(sizes)


def action_spec(
    environment_id: str, space: spaces.Space[Any], sizes: tuple[int, ...] = ()
) -> tuple[ArraySpec, tuple[int, ...]]:
    """The spec of single actions, and the number of values of each discrete part; see `EnvironmentSpec`.

    sizes: values of each of several discrete parts, the first in the space. Raises UserError for unsupported actions.
    """
    if isinstance(space, spaces.Discrete) and int(space.start) == 0:
        return ArraySpec((), "int64"), (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete) and sizes:
        return ArraySpec((len(sizes),), "int64"), sizes
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
        check_size(environment_id, "actions", space)
        spec = ArraySpec(tuple(space.shape), "float32", bounds(space.low), bounds(space.high))
        # A discrete part may have a single value.
        low, high = (bound[len(sizes) :] for bound in (space.low, space.high))
        continuous = ArraySpec((len(low),), "float32", bounds(low), bounds(high))
        if continuous.bounded and np.abs(continuous.bounds()).max() <= LARGEST_NUMBER:
            return spec, sizes
    raise UserError(
        f"environment {environment_id}: actions must be {SUPPORTED_ACTIONS}, got {in_one_line(space)}{_way_out(space)}"
    )


def _way_out(space: spaces.Space[Any]) -> str:
    """The end of an error, with the flag that bounds unbounded actions."""
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return ""
    path = f"{BoundedActions.__module__}:{BoundedActions.__name__}"
    return f"; bounds of your own work: --environment-wrappers '[{{{path}: {{bound: 1.0}}}}]'"


def _is_one(space: spaces.Space[Any]) -> bool:
    """Whether actions are one discrete action that counts from 0, or a vector."""
    return (isinstance(space, spaces.Discrete) and not space.start) or (
        isinstance(space, spaces.Box) and len(space.shape) == 1
    )


def _is_part(leaf: spaces.Space[Any]) -> bool:
    if isinstance(leaf, spaces.Box):
        return leaf.dtype.kind == "f"
    return isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _boxes(space: spaces.Space[Any]) -> list[spaces.Box]:
    return [leaf for _, leaf in leaves_of(space) if isinstance(leaf, spaces.Box)]


def _composed(space: spaces.Space[Any], choices: Iterator[Any], numbers: Iterator[Any]) -> Any:
    """The action with these choices of its discrete parts and these numbers of its boxes, both in order."""
    if isinstance(space, spaces.Dict):
        return {name: _composed(child, choices, numbers) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_composed(child, choices, numbers) for child in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(next(choices))
    source, first = (numbers, 0) if isinstance(space, spaces.Box) else (choices, getattr(space, "start", 0))
    chosen = np.array([next(source) for _ in range(math.prod(space.shape or ()))]).reshape(space.shape or ())
    return (chosen + first).astype(space.dtype)


def bounds(values: NDArray[Any]) -> tuple[float, ...]:
    """One value if all are equal, else all values; empty if any is infinite or NaN."""
    values = np.asarray(values, np.float32)
    if not np.isfinite(values).all():
        return ()
    distinct = np.unique(values)
    return tuple(map(float, distinct if distinct.size == 1 else values.ravel()))
