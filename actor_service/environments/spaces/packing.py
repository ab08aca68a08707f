"""Packs observations of several arrays, and action masks, into one array of bytes (actorq.domain.leaves)."""

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actor_service.environments.failures import FAILURES, MisfitError, kind_of
from actor_service.environments.spaces.critics import NO_PARTS, CriticParts
from actor_service.environments.spaces.observations import (
    MOST_PARTS,
    Keys,
    indicators_of,
    is_image,
    leaves_of,
    part_words,
    path_of,
    words_of,
)
from actorq.domain.leaves import ACTION_MASK, CRITIC_VECTOR, VECTOR, Leaf, packed_nbytes, views
from actorq.domain.limits import LARGEST_NUMBER, within_numbers
from actorq.errors import UserError

# A category with this many values gets an embedding. A smaller category is one-hot. A larger one is refused.
LEAST_EMBEDDED, MOST_CATEGORIES = 64, 65_536
# Sources of an environment's mask: a part of its observations, the info of reset and step, or a method.
Source = Literal["", "observation", "info", "method"]
_METHOD = "action_masks"
# Modules of the base classes of all environments.
_OF_ALL = ("builtins", "typing", "abc", "gymnasium.core", "gymnasium.utils.record_constructor", __name__)


@dataclass(frozen=True)
class _Part:
    """A part of an observation: its path and space, and for a part of a vector its position and the vector's name."""

    keys: Keys
    space: spaces.Space[Any]
    place: slice
    vector: str = ""

    @property
    def name(self) -> str:
        """Its path, for errors."""
        return path_of(self.keys) or "an observation"


class PackedObservations(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations are uint8[bytes].

    leaves: the packed arrays. parts: the parts of the policy's vector, in words. indicators: see `EnvironmentSpec`.
    sizes: number of values of each discrete part of an action. combined: whether a combination of values is one action.
    critics: the parts that only critics see. Their numbers are a vector of their own.

    Raises UserError for parts that cannot be packed. `reset` and `step` raise MisfitError, with the part's name, for an
    observation that does not fit its space. They also raise it for a mask without a legal choice when an action
    follows.
    """

    def __init__(
        self,
        environment: Any,
        source: Source,
        sizes: Sequence[int],
        combined: bool,
        critics: CriticParts = NO_PARTS,
    ) -> None:
        super().__init__(environment)
        self._source, self._sizes, self._combined = source, tuple(sizes), combined
        parts: dict[str, list[_Part]] = {VECTOR: [], CRITIC_VECTOR: []}
        numbers = dict.fromkeys(parts, 0)
        self._arrays: list[tuple[_Part, Leaf]] = []
        for keys, space in _seen_parts(environment.observation_space, source, critics):
            vector, leaf = CRITIC_VECTOR if critics.has(keys) else VECTOR, _own_leaf(keys, space)
            if leaf is not None:
                self._arrays.append((_Part(keys, space, slice(0)), replace(leaf, critic=vector == CRITIC_VECTOR)))
                continue
            size = spaces.flatdim(space) if part_words(space) else 0
            if not size:
                raise UserError(
                    f"observations: {path_of(keys)}: expected numbers, an image, a category or bits, got {space}; "
                    "leave it out with a wrapper"
                )
            start = numbers[vector]
            parts[vector].append(_Part(keys, space, slice(start, start + size), vector))
            numbers[vector] += size
        self._parts = [*parts[VECTOR], *parts[CRITIC_VECTOR]]
        self.parts = words_of((each.keys, each.space) for each in parts[VECTOR])
        self.indicators = indicators_of(each.space for each in self._parts)
        vectors = (
            Leaf(name, "numbers", (size,), "float32", critic=name == CRITIC_VECTOR)
            for name, size in numbers.items()
            if size
        )
        choices = math.prod(sizes) if combined else sum(sizes)
        mask = (Leaf(ACTION_MASK, "mask", (choices,), "bool"),) if source else ()
        self.leaves = (*vectors, *(leaf for _, leaf in self._arrays), *mask)
        if unnamed := [part for part in (*self._parts, *(part for part, _ in self._arrays)) if "" in part.keys]:
            raise UserError(f"observations: a key of {unnamed[0].space} is empty; name it in the environment")
        names = [leaf.name for leaf in self.leaves]
        if (count := len(self._parts) + len(self._arrays)) > MOST_PARTS:
            raise UserError(f"observations: expected at most {MOST_PARTS} parts, got {count}; join some of them")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"observations: two parts have the name {twice[0]}; rename one of them in the environment")
        self._packed = np.zeros(packed_nbytes(self.leaves), np.uint8)
        self._views = views(self.leaves, self._packed)
        self.observation_space = spaces.Box(0, 255, self._packed.shape, np.uint8)

    def first_component(self, key: str) -> int:
        """The first component of a part of the policy's vector."""
        places = (part.place for part in self._parts if part.keys == (key,) and part.vector == VECTOR)
        return int(next(places).start)

    def reset(self, **options: Any) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**options)
        return self.pack(observation, info, counts=True), info

    def step(self, action: Any) -> tuple[NDArray[np.uint8], Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.pack(observation, info, not (terminated or truncated)), reward, terminated, truncated, info

    def pack(self, observation: Any, info: Mapping[str, Any], counts: bool) -> NDArray[np.uint8]:
        """The bytes of an observation. The next call overwrites them. counts: whether an action follows."""
        for part in self._parts:
            self._views[part.vector][part.place] = _flat(part, _found(observation, part.keys))
        for part, leaf in self._arrays:
            self._views[leaf.name][...] = _array(part, leaf, _found(observation, part.keys))
        if self._source:
            self._views[ACTION_MASK][...] = self._mask(observation, info, counts)
        return self._packed

    def _mask(self, observation: Any, info: Mapping[str, Any], counts: bool) -> NDArray[np.bool_]:
        """The mask of legal choices, with at least one legal choice for each part."""
        if self._source == "observation":
            found = _found(observation, (ACTION_MASK,))
        elif self._source == "method":
            found = self.env.get_wrapper_attr(_METHOD)()
        elif ACTION_MASK in info:
            found = info[ACTION_MASK]
        else:
            raise MisfitError(f"info must have {ACTION_MASK} after each reset and step, as after the first one")
        mask = np.asarray(found).astype(np.bool_).ravel()
        if self._combined and mask.size == sum(self._sizes) != math.prod(self._sizes):
            mask = _of_combinations(mask, self._sizes)
        parts = (mask,) if self._combined else np.split(mask, np.cumsum(self._sizes)[:-1])
        if mask.shape != self._views[ACTION_MASK].shape:
            raise MisfitError(f"an action mask must have {self._views[ACTION_MASK].size} choices, got {mask.size}")
        for part in parts:
            if not part.any():
                if counts:
                    raise MisfitError("an action mask must allow at least one choice, got none")
                # The action after an episode's end is ignored.
                part[:] = True
        return np.concatenate(parts)


def mask_source(environment: Any, sizes: Sequence[int], before_reset: Callable[[], None]) -> Source:
    """The source of an environment's action mask; empty if it has none.

    Resets the environment if the source code of its classes contains the word. A reset that fails here fails again
    where the error is reported.
    """
    space = environment.observation_space
    if not sizes:
        return ""
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        return "observation"
    if not any(map(mentions_mask, _classes(environment))):
        return ""
    before_reset()
    try:
        _, info = environment.reset(seed=0)
    except FAILURES:
        info = None
    if isinstance(info, Mapping) and ACTION_MASK in info:
        return "info"
    try:
        return "method" if callable(environment.get_wrapper_attr(_METHOD)) else ""
    except AttributeError:
        return ""


def needs_packing(space: spaces.Space[Any], source: Source, critics: CriticParts = NO_PARTS) -> bool:
    """Whether observations are several arrays: an image with other parts, a large category, a mask, or critics' parts.

    Raises UserError as `CriticParts.apply_to` does.
    """
    has_critics_parts = critics.apply_to(space, masked=source == "observation")
    found = list(_seen_parts(space, "", critics))
    if len(found) > MOST_PARTS or not all(part_words(leaf) or _own_leaf(keys, leaf) for keys, leaf in found):
        # Another function refuses this space and names a remedy.
        return False
    has_arrays = not isinstance(space, spaces.Box) and any(_own_leaf(*each) for each in found)
    return has_critics_parts or bool(source) or has_arrays


def _seen_parts(
    space: spaces.Space[Any], source: Source, critics: CriticParts
) -> Iterator[tuple[Keys, spaces.Space[Any]]]:
    """The parts of a space, without its mask, and without those parts of critics that are left out."""
    for keys, part in leaves_of(space):
        is_mask = source == "observation" and keys == (ACTION_MASK,)
        if not is_mask and not (critics.left_out and critics.has(keys)):
            yield keys, part


def _classes(environment: Any) -> Iterator[type]:
    """The classes of an environment and its wrappers, without Gymnasium's base classes."""
    while True:
        yield from (each for each in type(environment).__mro__ if each.__module__ not in _OF_ALL)
        if not isinstance(environment, gymnasium.Wrapper):
            return
        environment = environment.env


def mentions_mask(kind: type) -> bool:
    """Whether the source of a class's module contains the word. A module without source may contain it."""
    try:
        return ACTION_MASK in inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):
        return True


def _own_leaf(keys: Keys, space: spaces.Space[Any]) -> Leaf | None:
    """The leaf of an image or a large category; None for a part of the vector."""
    path = path_of(keys) or "observation"
    if is_image(space):
        shape = space.shape or ()
        shape = (*shape, 1) if len(shape) == 2 else shape
        return Leaf(path, "image", tuple(shape), np.dtype(space.dtype).name)
    if isinstance(space, spaces.Discrete) and LEAST_EMBEDDED <= space.n <= MOST_CATEGORIES:
        return Leaf(path, "category", (), "int32", int(space.n))
    return None


def _found(observation: Any, keys: Keys) -> Any:
    """The part of a nested observation at a path."""
    for key in keys:
        try:
            observation = observation[key]
        except (KeyError, IndexError, TypeError):
            what = f"an observation must have {path_of(keys)} as its space says"
            raise MisfitError(f"{what}, got {kind_of(observation)} without {key!r}") from None
    return observation


def _flat(part: _Part, value: Any) -> NDArray[Any]:
    """A part of the vector, as float32 numbers."""
    try:
        flat = np.asarray(spaces.flatten(part.space, value))
    except Exception:  # A value of an unknown type may raise any exception.
        flat = np.empty(0)
    if flat.shape != (part.place.stop - part.place.start,) or flat.dtype.kind not in "fiub":
        raise MisfitError(f"{part.name} must be in {part.space}, got {kind_of(value)}")
    if not within_numbers(flat).all():
        raise MisfitError(f"{part.name}: NaN or a number beyond {LARGEST_NUMBER:g}")
    return flat


def _array(part: _Part, leaf: Leaf, value: Any) -> NDArray[Any]:
    """An image, or a category that counts from 0."""
    array = np.asarray(value)
    if leaf.kind == "category":
        number = array - int(part.space.start) if array.shape == () and array.dtype.kind in "iu" else np.array(-1)  # type: ignore[attr-defined]
        if 0 <= number < leaf.categories:
            return number
    elif array.shape == part.space.shape and np.can_cast(array.dtype, leaf.dtype, "same_kind"):
        return array.reshape(leaf.shape)
    raise MisfitError(f"{part.name} must be in {part.space}, got {kind_of(value)}")


def _of_combinations(mask: NDArray[np.bool_], sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which combinations are legal: those in which each part is legal."""
    allowed: NDArray[np.bool_] = reduce(np.logical_and.outer, np.split(mask, np.cumsum(sizes)[:-1]))
    return allowed.ravel()
