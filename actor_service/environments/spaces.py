"""Converts Gymnasium's spaces to specs, joins those of several parts, and refuses unsupported ones."""

import itertools
import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actorq.domain.columns import LARGEST_NUMBER
from actorq.domain.limits import MAX_DISCRETE_ACTIONS, MAX_SEGMENT_BYTES
from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError

SUPPORTED_OBSERVATIONS = (
    "an image (a Box of uint8 or bool), or numbers, categories and bits (Box, Discrete, MultiDiscrete, MultiBinary, "
    "and Dict and Tuple of them)"
)
# Of a nested space.
MOST_PARTS = 64
# Combinations of discrete actions, each of which has an output of the policy.
MOST_COMBINATIONS = 1024
SUPPORTED_ACTIONS = (
    f"discrete (several parts: at most {MOST_COMBINATIONS:,} combinations), or boxes of floats with bounds from "
    f"{-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}"
)

# Float32 numbers of an observation that fit a message.
_MOST_NUMBERS = MAX_SEGMENT_BYTES // 4
# Float32 holds all whole numbers up to this one.
_EXACT = 2**24


class UnsupportedObservationsError(UserError):
    """An observation space that no policy takes.

    flattened: numbers of an observation as a vector; 0 if Gymnasium cannot flatten it.
    keys: the parts of a Dict that it can flatten, if it cannot flatten all of them. `flattened` is of these.
    """

    def __init__(self, text: str, space: spaces.Space[Any]) -> None:
        super().__init__(text)
        self.flattened, self.keys = _flattened(space), tuple[str, ...]()
        if not self.flattened and isinstance(space, spaces.Dict):
            parts = {key: _flattened(part) for key, part in space.items()}
            self.flattened = sum(parts.values())
            self.keys = tuple(key for key, size in parts.items() if size)


def is_plane(space: spaces.Space[Any]) -> bool:
    """Whether observations are images [height, width], which need an axis for their one channel."""
    return isinstance(space, spaces.Box) and len(space.shape) == 2 and space.dtype in (np.uint8, np.bool_)


def parts_of(space: spaces.Space[Any]) -> tuple[str, ...]:
    """The parts of observations that become one vector, in the order of `gymnasium.spaces.flatten`, in words.

    Numbers stay numbers. A category of n becomes n numbers, one of them 1 (one-hot). Empty for spaces that need no
    change, such as vectors and images, and for spaces that cannot be one vector: images beside other parts, text,
    graphs and sequences, and more than `MOST_PARTS` parts.
    """
    if (isinstance(space, spaces.Box) and (len(space.shape) == 1 or _is_image(space))) or not _flattened(space):
        return ()
    found = [(path, _words(leaf)) for path, leaf in _leaves(space)]
    if len(found) > MOST_PARTS or not all(words for _, words in found):
        return ()
    return tuple(f"{path} ({words})" if path else words for path, words in found)


def _leaves(space: spaces.Space[Any], path: str = "") -> Iterator[tuple[str, spaces.Space[Any]]]:
    """The parts of a nested space that are not nested, each with its path."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield path, space
        return
    children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for name, child in children:
        yield from _leaves(child, f"{path}/{name}" if path else str(name))


def _words(leaf: spaces.Space[Any]) -> str:
    """A part of a vector of observations in words; empty for one that cannot be such a part."""
    if isinstance(leaf, spaces.Box) and not _is_image(leaf) and 0 not in leaf.shape:
        count = math.prod(leaf.shape)
        return f"{count} number{'s' * (count != 1)}"
    if isinstance(leaf, spaces.Discrete):
        return f"one of {leaf.n}"
    if isinstance(leaf, spaces.MultiDiscrete):
        return f"{leaf.nvec.size} of {'/'.join(map(str, sorted({*leaf.nvec.ravel().tolist()})))}"
    return f"{math.prod(leaf.shape)} bits" if isinstance(leaf, spaces.MultiBinary) else ""


def _is_image(space: spaces.Box) -> bool:
    return len(space.shape) in (2, 3) and space.dtype in (np.uint8, np.bool_)


def observation_spec(environment_id: str, space: spaces.Space[Any]) -> ArraySpec:
    """The spec of single observations.

    Floats and uint64 become float32, and so do integers of 64 bits whose bounds float32 holds. Other integers of 16
    bits and more become int32 or int64.

    Raises UnsupportedObservationsError. The spec has no bounds: they are unused, and libraries give different
    ones for the same environment.
    """
    dtype = space.dtype
    is_vector = isinstance(space, spaces.Box) and len(space.shape) == 1 and dtype is not None and dtype.kind in "fiub"
    is_image = isinstance(space, spaces.Box) and len(space.shape) == 3 and dtype in (np.uint8, np.bool_)
    if not (is_vector or is_image):
        raise UnsupportedObservationsError(
            f"environment {environment_id}: observations must be {SUPPORTED_OBSERVATIONS}, got {_in_one_line(space)}",
            space,
        )
    assert isinstance(space, spaces.Box)
    _check_size(environment_id, "observations", space)
    carried = space.dtype if space.dtype.itemsize == 1 else np.result_type(space.dtype, np.int32)
    if carried == np.int64 and space.low.min() >= -_EXACT and space.high.max() <= _EXACT:
        carried = np.dtype(np.float32)
    return ArraySpec(tuple(space.shape), "float32" if carried.kind == "f" else carried.name)


def action_spec(environment_id: str, space: spaces.Space[Any]) -> tuple[ArraySpec, int]:
    """The spec of single actions, and the number of discrete actions (0 if continuous). Raises UserError likewise."""
    if isinstance(space, spaces.Discrete) and int(space.start) == 0:
        return ArraySpec((), "int64"), int(space.n)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
        _check_size(environment_id, "actions", space)
        spec = ArraySpec(tuple(space.shape), "float32", bounds(space.low), bounds(space.high))
        if spec.bounded and np.abs(spec.bounds()).max() <= LARGEST_NUMBER:
            return spec, 0
    raise UserError(f"environment {environment_id}: actions must be {SUPPORTED_ACTIONS}, got {_in_one_line(space)}")


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
        return f"parts of {' + '.join(str(math.prod(leaf.shape or ())) for _, leaf in _leaves(space))}"


def with_one_action(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment with one discrete action or one vector, where its actions can be joined to that.

    Discrete parts become one discrete action for each combination, in C order (the last part changes fastest). Boxes
    become one vector, in the order of `gymnasium.spaces.flatten`.
    """
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


def _all_boxes(space: spaces.Space[Any]) -> bool:
    return all(isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" for _, leaf in _leaves(space))


def _sizes(space: spaces.Space[Any]) -> list[int]:
    """The number of choices of each discrete part; empty if another part is among them."""
    sizes: list[int] = []
    for _, leaf in _leaves(space):
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
    """All actions of a space of discrete parts that have few combinations; None for any other space."""
    sizes = _sizes(space)
    if not sizes or math.prod(sizes) > (MOST_COMBINATIONS if len(sizes) > 1 else MAX_DISCRETE_ACTIONS):
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


def _check_size(environment_id: str, what: str, space: spaces.Box) -> None:
    if 0 in space.shape:
        raise UserError(
            f"environment {environment_id}: {what} must have at least one number, got {_in_one_line(space)}"
        )


def _flattened(space: spaces.Space[Any]) -> int:
    """The numbers of an observation as a vector; 0 if Gymnasium cannot flatten it to one that fits a message."""
    numbers = spaces.flatdim(space) if space.is_np_flattenable else 0
    return numbers if numbers <= _MOST_NUMBERS else 0


def _in_one_line(space: spaces.Space[Any]) -> str:
    # A Box with different bounds for each element prints them as arrays over several lines.
    return " ".join(str(space).split())


def bounds(values: NDArray[Any]) -> tuple[float, ...]:
    """One value if all are equal, else all values; empty if any is infinite or NaN."""
    values = np.asarray(values, np.float32)
    if not np.isfinite(values).all():
        return ()
    distinct = np.unique(values)
    return tuple(map(float, distinct if distinct.size == 1 else values.ravel()))
