"""Converts Gymnasium's spaces to specs, and refuses unsupported spaces."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actorq.domain.columns import LARGEST_NUMBER
from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError

SUPPORTED_OBSERVATIONS = (
    "an image (a Box of uint8 or bool), or numbers, categories and bits (Box, Discrete, MultiDiscrete, MultiBinary, "
    "and Dict and Tuple of them)"
)
# Of a nested space.
MOST_PARTS = 64
SUPPORTED_ACTIONS = f"Discrete, or a Box that is a vector with bounds from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}"


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
    if isinstance(space, spaces.Box) and (len(space.shape) == 1 or _is_image(space)):
        return ()
    found = list(_leaves(space, ""))
    if len(found) > MOST_PARTS or any(not text for text in found):
        return ()
    return tuple(found)


def _leaves(space: spaces.Space[Any], path: str) -> Iterator[str]:
    """Each leaf of a nested space in words; an empty text for one that cannot be part of a vector."""
    children = (
        space.spaces.items()
        if isinstance(space, spaces.Dict)
        else enumerate(space.spaces)
        if isinstance(space, spaces.Tuple)
        else None
    )
    if children is not None:
        for name, child in children:
            yield from _leaves(child, f"{path}/{name}" if path else str(name))
        return
    kind = ""
    if isinstance(space, spaces.Box) and not _is_image(space) and 0 not in space.shape:
        count = math.prod(space.shape)
        kind = f"{count} number{'s' * (count != 1)}"
    elif isinstance(space, spaces.Discrete):
        kind = f"one of {space.n}"
    elif isinstance(space, spaces.MultiDiscrete):
        kind = f"{space.nvec.size} of {'/'.join(map(str, sorted({*space.nvec.ravel().tolist()})))}"
    elif isinstance(space, spaces.MultiBinary):
        kind = f"{math.prod(space.shape)} bits"
    yield f"{path} ({kind})" if path and kind else kind


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


def _check_size(environment_id: str, what: str, space: spaces.Box) -> None:
    if 0 in space.shape:
        raise UserError(
            f"environment {environment_id}: {what} must have at least one number, got {_in_one_line(space)}"
        )


def _flattened(space: spaces.Space[Any]) -> int:
    """The numbers of an observation as a vector; 0 if Gymnasium cannot flatten it to one."""
    try:
        flat = spaces.flatten_space(space)
    except (NotImplementedError, ValueError):
        return 0
    return flat.shape[0] if isinstance(flat, spaces.Box) else 0


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
