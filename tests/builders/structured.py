"""Specs of observations of several arrays, and random observations of them."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.leaves import ACTION_MASK, VECTOR, Leaf, packed_nbytes, views
from actorq.domain.spaces import ArraySpec, EnvironmentSpec

NUMBERS = Leaf(VECTOR, "numbers", (3,), "float32")
IMAGE = Leaf("camera/left", "image", (8, 10, 3), "uint8")
PLANES = Leaf("planes", "image", (5, 5, 2), "bool")
CATEGORY = Leaf("item", "category", (), "int32", 100)
ALL = (NUMBERS, IMAGE, PLANES, CATEGORY)


def mask(choices: int) -> Leaf:
    """A mask of so many choices."""
    return Leaf(ACTION_MASK, "mask", (choices,), "bool")


def critics(leaf: Leaf) -> Leaf:
    """The leaf, for critics only."""
    return replace(leaf, critic=True)


def packed(*leaves: Leaf) -> ArraySpec:
    """The spec of observations of these leaves."""
    return ArraySpec((packed_nbytes(leaves),), "uint8", leaves=leaves)


def discrete(
    *leaves: Leaf, choices: tuple[int, ...] = (), masked: bool = False, frame_stack: int = 1
) -> EnvironmentSpec:
    """An environment of one discrete action of five values, or of several parts."""
    count = sum(choices) or 5
    leaves = (*leaves, mask(count)) if masked else leaves
    actions = ArraySpec((len(choices),) if choices else (), "int64")
    observations = packed(*leaves) if leaves else ArraySpec((3,), "float32")
    return EnvironmentSpec("Parts-v0", observations, actions, choices or (count,), frame_stack=frame_stack)


def mixed(*leaves: Leaf) -> EnvironmentSpec:
    """An environment of two discrete parts and two continuous components."""
    spec = discrete(*leaves, choices=(2, 3))
    return replace(spec, actions=ArraySpec((4,), "float32", (0.0, 0.0, -2.0, 1.0), (1.0, 2.0, 2.0, 3.0)))


def random_observations(rng: np.random.Generator, spec: EnvironmentSpec, *rows: int) -> NDArray[np.uint8]:
    """uint8[*rows, bytes], with at least one allowed choice of each part."""
    found = np.zeros((*rows, *spec.observations.shape), np.uint8)
    for leaf, values in zip(spec.leaves, views(spec.leaves, found).values(), strict=True):
        if leaf.kind == "numbers":
            values[...] = rng.standard_normal(values.shape)
        elif leaf.kind == "category":
            values[...] = rng.integers(leaf.categories, size=values.shape)
        elif leaf.kind == "mask":
            values[...] = rng.random(values.shape) < 0.4
            stops = np.cumsum(spec.sizes)
            for stop, size in zip(stops, spec.sizes, strict=True):
                chosen = stop - 1 - rng.integers(size, size=values.shape[:-1])
                np.put_along_axis(values, chosen[..., None], True, axis=-1)
        else:
            values[...] = rng.integers(256 if leaf.dtype == "uint8" else 2, size=values.shape)
    return found


def random_choices(rng: np.random.Generator, spec: EnvironmentSpec, *rows: int) -> NDArray[Any]:
    """Actions [*rows, *action] of each part, whether they are allowed or not."""
    chosen = rng.integers(spec.sizes, size=(*rows, len(spec.sizes)))
    if spec.components:
        drawn = rng.standard_normal((*rows, spec.components))
        return np.concatenate((chosen, drawn), axis=-1).astype(np.float32)
    return chosen.reshape(*rows, *spec.actions.shape)
