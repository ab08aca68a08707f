"""Converts Gymnasium's spaces of observations to specs, and refuses unsupported ones."""

import math
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
from gymnasium import spaces

from actorq.domain.limits import MAX_SEGMENT_BYTES
from actorq.domain.spaces import ArraySpec
from actorq.errors import UserError
from actorq.text import one_line

SUPPORTED_OBSERVATIONS = (
    "images (a Box of uint8 or bool), numbers, categories and bits "
    "(Box, Discrete, MultiDiscrete, MultiBinary), or Dict and Tuple of these"
)
# Most parts of a nested space.
MOST_PARTS = 64
# Keys and indices that lead to a part of a nested space.
Keys = tuple[Any, ...]
# Most float32 numbers of an observation that fit a message.
_MOST_NUMBERS = MAX_SEGMENT_BYTES // 4
# Most characters of a space in an error.
_MOST_BYTES = 300
# Float32 represents all whole numbers up to this one exactly.
_EXACT = 2**24


class UnsupportedObservationsError(UserError):
    """An observation space that no policy supports.

    flattened: number of components of an observation as a vector; 0 if Gymnasium cannot flatten it.
    keys: the parts of a Dict that it can flatten, if it cannot flatten all of them. `flattened` then counts only these.
    """

    def __init__(self, text: str, space: spaces.Space[Any]) -> None:
        super().__init__(text)
        self.flattened, self.keys = flattened(space), tuple[str, ...]()
        if not self.flattened and isinstance(space, spaces.Dict):
            parts = {key: flattened(part) for key, part in space.items()}
            self.flattened = sum(parts.values())
            self.keys = tuple(key for key, size in parts.items() if size)


def is_plane(space: spaces.Space[Any]) -> bool:
    """Whether observations are images [height, width], which need an axis for their single channel."""
    return is_image(space) and len(space.shape or ()) == 2


def parts_of(space: spaces.Space[Any]) -> tuple[str, ...]:
    """The parts of observations that become one vector, in words, in the order of `gymnasium.spaces.flatten`.

    Numbers stay numbers. A category of n becomes n numbers, one of them 1 (one-hot). Empty for spaces that need no
    change, such as vectors and images. Empty also for spaces that cannot be one vector: images with other parts, text,
    graphs and sequences, and more than `MOST_PARTS` parts.
    """
    if (isinstance(space, spaces.Box) and (len(space.shape) == 1 or is_image(space))) or not flattened(space):
        return ()
    found = list(leaves_of(space))
    if len(found) > MOST_PARTS or not all(part_words(leaf) for _, leaf in found):
        return ()
    return words_of(found)


def leaves_of(space: spaces.Space[Any], keys: Keys = ()) -> Iterator[tuple[Keys, spaces.Space[Any]]]:
    """The parts of a nested space that are not nested, each with the keys that lead to it."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield keys, space
        return
    children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, child in children:
        yield from leaves_of(child, (*keys, key))


def path_of(keys: Keys) -> str:
    """The keys as a path, percent-escaped, such as "camera/left"; empty for a space that is not nested."""
    return "/".join(quote(str(key), safe=" ") for key in keys)


def words_of(parts: Iterable[tuple[Keys, spaces.Space[Any]]]) -> tuple[str, ...]:
    """The parts of a vector, in words."""
    return tuple(f"{path_of(keys)} ({part_words(leaf)})" if keys else part_words(leaf) for keys, leaf in parts)


def indicators_of(parts: Iterable[spaces.Space[Any]]) -> tuple[int, ...]:
    """Which components of a vector of these parts are bits or one-hot categories; see `EnvironmentSpec.indicators`."""
    found, start = list[int](), 0
    for part in parts:
        stop = start + spaces.flatdim(part)
        if not isinstance(part, spaces.Box):
            if found and found[-1] == start:
                found.pop()
            else:
                found.append(start)
            found.append(stop)
        start = stop
    return tuple(found)


def part_words(leaf: spaces.Space[Any]) -> str:
    """A part of a vector of observations, in words; empty if it cannot be such a part."""
    if isinstance(leaf, spaces.Box) and not is_image(leaf) and 0 not in leaf.shape:
        count = math.prod(leaf.shape)
        return f"{count} number{'s' * (count != 1)}"
    if isinstance(leaf, spaces.Discrete):
        return f"one of {leaf.n}" if flattened(leaf) else ""
    if isinstance(leaf, spaces.MultiDiscrete):
        return f"{leaf.nvec.size} of {'/'.join(map(str, sorted({*leaf.nvec.ravel().tolist()})))}"
    return f"{math.prod(leaf.shape)} bits" if isinstance(leaf, spaces.MultiBinary) else ""


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether a space is an image."""
    return isinstance(space, spaces.Box) and len(space.shape) in (2, 3) and space.dtype in (np.uint8, np.bool_)


def observation_spec(environment_id: str, space: spaces.Space[Any]) -> ArraySpec:
    """The spec of single observations.

    Floats and uint64 become float32. So do integers of 64 bits if float32 represents their bounds. Other integers of 16
    bits and more become int32 or int64.

    Raises UnsupportedObservationsError. The spec has no bounds, because they are unused and differ between libraries.
    """
    is_vector = isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind in "fiub"
    if not (is_vector or (is_image(space) and not is_plane(space))):
        raise UnsupportedObservationsError(
            f"environment {environment_id}: observations must be {SUPPORTED_OBSERVATIONS}, got {_misfit(space)}", space
        )
    assert isinstance(space, spaces.Box)
    check_size(environment_id, "observations", space)
    carried = space.dtype if space.dtype.itemsize == 1 else np.result_type(space.dtype, np.int32)
    if carried == np.int64 and space.low.min() >= -_EXACT and space.high.max() <= _EXACT:
        carried = np.dtype(np.float32)
    return ArraySpec(tuple(space.shape), "float32" if carried.kind == "f" else carried.name)


def check_size(environment_id: str, what: str, space: spaces.Box) -> None:
    """Raise UserError for a box without numbers."""
    if 0 in space.shape:
        raise UserError(f"environment {environment_id}: {what} must have at least one number, got {in_one_line(space)}")


def flattened(space: spaces.Space[Any]) -> int:
    """The size of an observation as a vector; 0 if Gymnasium cannot flatten it into a vector that fits a message."""
    try:
        numbers = spaces.flatdim(space) if space.is_np_flattenable else 0
    except NotImplementedError:
        # A space of another package may not say whether it can be flattened.
        return 0
    return numbers if numbers <= _MOST_NUMBERS else 0


def _misfit(space: spaces.Space[Any]) -> str:
    """The unsupported part: the first such part of a nested space with its path, or the space itself."""
    found = list(leaves_of(space))
    if len(found) > MOST_PARTS:
        return f"{len(found):,} parts, more than {MOST_PARTS}"
    misfits = ((keys, leaf) for keys, leaf in found if keys and not part_words(leaf) and not is_image(leaf))
    keys, leaf = next(misfits, ((), space))
    return f"{path_of(keys)}: {in_one_line(leaf)}" if keys else in_one_line(space)


def in_one_line(space: spaces.Space[Any]) -> str:
    """A space on one line, for an error."""
    # A Box with different bounds for each element prints them as arrays on several lines.
    return one_line(" ".join(str(space).split()), _MOST_BYTES)
