"""Observations of several arrays: each array is a leaf. An observation is the bytes of all leaves in order.

Segments, messages and the replay therefore keep one array of bytes for any set of leaves. The actor packs the leaves
when it reads an observation. Code that computes with leaves uses views.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from actorq.domain.limits import within_numbers

Kind = Literal["numbers", "image", "category", "mask"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Number of axes and dtypes of each kind.
_FORMS: dict[Kind, tuple[int, tuple[str, ...]]] = {
    "numbers": (1, ("float32", "int32", "int64", "uint8", "int8", "bool")),
    "image": (3, ("uint8", "bool")),
    "category": (0, ("int32",)),
    "mask": (1, ("bool",)),
}
# Each leaf begins at a multiple of this many bytes, so that its numbers are aligned.
_ALIGNMENT = 8
# Name of the leaf that joins all numbers, name of a mask's leaf, and the mask's name as an input of a policy.
VECTOR, ACTION_MASK, MASK = "vector", "action_mask", "mask"
CRITIC_VECTOR = "critic_vector"
"""Name of the leaf that joins the numbers which only critics see."""
OBSERVATIONS = "observations"
"""Name of the policy graph's input for observations of one array. With several arrays: "observations/LEAF"."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    name: its path in the environment's space, with "/" between keys; `VECTOR` for the numbers that were joined.
    kind: "numbers"; "image" (uint8 or bool, [height, width, channels] or channels first); "category" (an integer from
        0 to categories - 1, of shape ()); "mask" (bool[choices of all discrete parts of an action], true where a choice
        is allowed).
    shape, dtype: of one array, without a stack.
    categories: number of values of a category; 0 for others.
    critic: whether only critics and value networks see it. The policy's graph has no input for it.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    categories: int = 0
    critic: bool = False

    @property
    def input(self) -> str:
        """Name of its input in a policy graph."""
        return MASK if self.kind == "mask" else f"{OBSERVATIONS}/{self.name}"

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def fault(self) -> str:
        """A mismatch between this leaf and its kind; empty if there is none."""
        axes, dtypes = _FORMS[self.kind]
        if len(self.shape) != axes or self.dtype not in dtypes:
            return f"{self.kind} must have {axes} axes of {' or '.join(dtypes)}, got {self.dtype}{list(self.shape)}"
        if self.critic and self.kind == "mask":
            return "a mask that only critics see, but the policy needs it"
        return "" if (self.categories > 0) == (self.kind == "category") else f"{self.categories} categories"


@dataclass(frozen=True)
class Image:
    """An image in the form that a policy gets."""

    channels: int
    height: int
    width: int
    layout: Literal["channels-first", "channels-last"] = "channels-first"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of its array."""
        sides = self.height, self.width
        return (self.channels, *sides) if self.layout == "channels-first" else (*sides, self.channels)

    @property
    def pixels(self) -> str:
        """Height and width in words."""
        return f"{self.height} x {self.width} pixels"


Leaves = tuple[Leaf, ...]


@lru_cache(maxsize=64)
def places(leaves: Leaves) -> Mapping[str, slice]:
    """The bytes of each leaf within an observation, by name."""
    found, start = {}, 0
    for leaf in leaves:
        found[leaf.name] = slice(start, start + leaf.nbytes)
        start += -(-leaf.nbytes // _ALIGNMENT) * _ALIGNMENT
    return found


def packed_nbytes(leaves: Leaves) -> int:
    """Bytes of an observation, a multiple of the alignment."""
    return sum(-(-leaf.nbytes // _ALIGNMENT) * _ALIGNMENT for leaf in leaves)


def views(leaves: Leaves, packed: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Views of observations, uint8[..., bytes] -> [..., *shape] of each leaf, by name. The last axis is contiguous."""
    found = places(leaves)
    return {
        leaf.name: packed[..., found[leaf.name]].view(leaf.dtype).reshape((*packed.shape[:-1], *leaf.shape))
        for leaf in leaves
    }


def fault_of(leaves: Leaves, packed: NDArray[Any]) -> str:
    """A value in observations uint8[..., bytes] that learners refuse, with its leaf's name; empty if there is none."""
    for leaf, values in zip(leaves, views(leaves, packed).values(), strict=True):
        if leaf.kind == "numbers" and not within_numbers(values).all():
            return f"{leaf.name}: {float(values[~within_numbers(values)][0]):g}"
        if leaf.kind == "category" and not ((values >= 0) & (values < leaf.categories)).all():
            return f"{leaf.name}: a category outside 0 to {leaf.categories - 1}"
        if np.dtype(leaf.dtype) == np.bool_ and (values.view(np.uint8) > 1).any():
            return f"{leaf.name}: a flag that is neither 0 nor 1"
        if leaf.kind == "mask" and not values.any(axis=-1).all():
            return f"{leaf.name}: no choice is allowed"
    return ""
