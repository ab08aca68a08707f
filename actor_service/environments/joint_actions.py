"""Actions of several parts as one action, for algorithms that choose one.

Discrete parts become one discrete action for each combination, in C order (the last part changes fastest). Boxes become
one vector, in the order of `gymnasium.spaces.flatten`.
"""

import itertools
import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Environment = gymnasium.Env[Any, Any]

# Combinations, each of which has an output of the policy.
MOST_COMBINATIONS = 1024


class JointActions(gymnasium.wrappers.TransformAction):
    """An environment whose actions are joined."""

    @property
    def text(self) -> str:
        """The parts, in words."""
        space = self.env.action_space
        if isinstance(space, spaces.Discrete):
            return f"{space.start} to {space.start + space.n - 1}"
        if sizes := _sizes(space):
            return f"combinations of {' x '.join(map(str, sizes))}"
        return f"parts of {' + '.join(str(math.prod(each.shape or ())) for each in _leaves(space))}"


def with_one_action(environment: Environment) -> Environment:
    """The environment with one discrete action or one vector, where its actions can be joined to that."""
    space = environment.action_space
    if _is_one(space):
        return environment
    if combinations := _combinations(space):
        table = list(combinations)
        return JointActions(environment, lambda action: deepcopy(table[action]), spaces.Discrete(len(table)))
    if _all_boxes(space):
        flat = spaces.flatten_space(space)
        return JointActions(environment, lambda action: spaces.unflatten(space, action), flat)
    return environment


def _is_one(space: spaces.Space[Any]) -> bool:
    """Whether actions are one discrete action from 0 on, or a vector."""
    return (isinstance(space, spaces.Discrete) and not space.start) or (
        isinstance(space, spaces.Box) and len(space.shape) == 1
    )


def _leaves(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return [leaf for child in space.spaces.values() for leaf in _leaves(child)]
    if isinstance(space, spaces.Tuple):
        return [leaf for child in space.spaces for leaf in _leaves(child)]
    return [space]


def _all_boxes(space: spaces.Space[Any]) -> bool:
    return all(isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" for leaf in _leaves(space))


def _sizes(space: spaces.Space[Any]) -> list[int]:
    """The number of choices of each discrete part; empty if another part is among them."""
    sizes: list[int] = []
    for leaf in _leaves(space):
        if isinstance(leaf, spaces.Discrete):
            sizes.append(int(leaf.n))
        elif isinstance(leaf, spaces.MultiDiscrete):
            sizes += leaf.nvec.ravel().tolist()
        elif isinstance(leaf, spaces.MultiBinary):
            sizes += [2] * math.prod(leaf.shape)
        else:
            return []
    return sizes


def _combinations(space: spaces.Space[Any]) -> Iterator[Any] | None:
    """All actions of a space of few discrete parts; None for any other space."""
    sizes = _sizes(space)
    if not sizes or math.prod(sizes) > MOST_COMBINATIONS:
        return None
    return (_composed(space, iter(choice)) for choice in itertools.product(*map(range, sizes)))


def _composed(space: spaces.Space[Any], choice: Iterator[int]) -> Any:
    """The action of a combination. `choice` has the choices of its parts in order."""
    if isinstance(space, spaces.Dict):
        return {name: _composed(child, choice) for name, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_composed(child, choice) for child in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(space.start) + next(choice)
    assert isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
    first: Any = space.start if isinstance(space, spaces.MultiDiscrete) else 0
    chosen = np.array([next(choice) for _ in range(math.prod(space.shape))], space.dtype).reshape(space.shape)
    return (chosen + first).astype(space.dtype)
