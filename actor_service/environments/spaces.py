"""Gymnasium's spaces as specs, and which of them are supported."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from actorq.domain.trajectory import ArraySpec
from actorq.errors import UserError

SUPPORTED_OBSERVATIONS = "a Box of numbers (a vector, or images of uint8 or bool)"
SUPPORTED_ACTIONS = "Discrete, or a Box that is a vector with finite bounds"


def observation_spec(environment_id: str, space: spaces.Space[Any]) -> ArraySpec:
    """The spec of single observations; float64 ones travel as float32.

    Raises UserError for a space that is not supported. Bounds are left out: nothing here uses them, and libraries give
    different ones for the same environment.
    """
    dtype = space.dtype
    is_vector = isinstance(space, spaces.Box) and len(space.shape) == 1 and dtype is not None and dtype.kind in "fiub"
    is_image = isinstance(space, spaces.Box) and len(space.shape) in (2, 3) and dtype in (np.uint8, np.bool_)
    if not (is_vector or is_image):
        raise UserError(
            f"environment {environment_id}: observations must be {SUPPORTED_OBSERVATIONS}, got {_in_one_line(space)}"
        )
    assert isinstance(space, spaces.Box)
    return ArraySpec(tuple(space.shape), "float32" if space.dtype.kind == "f" else space.dtype.name)


def action_spec(environment_id: str, space: spaces.Space[Any]) -> tuple[ArraySpec, int]:
    """The spec of single actions, and how many there are if discrete, else 0; raises UserError likewise."""
    if isinstance(space, spaces.Discrete) and int(space.start) == 0:
        return ArraySpec((), "int64"), int(space.n)
    if isinstance(space, spaces.Discrete):
        raise UserError(f"environment {environment_id}: discrete actions must start at 0, got {space.start}")
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
        spec = ArraySpec(tuple(space.shape), "float32", bounds(space.low), bounds(space.high))
        # Noise and random actions are drawn as shares of the range, which has to be a number, too.
        with np.errstate(over="ignore"):
            has_range = np.isfinite(np.subtract(*reversed(spec.bounds()))).all()
        if spec.bounded and has_range:
            return spec, 0
    raise UserError(f"environment {environment_id}: actions must be {SUPPORTED_ACTIONS}, got {_in_one_line(space)}")


def _in_one_line(space: spaces.Space[Any]) -> str:
    # A Box with bounds of their own for each element prints them as numpy prints arrays.
    return " ".join(str(space).split())


def bounds(values: NDArray[Any]) -> tuple[float, ...]:
    """One value where all are equal, else all of them; empty where one is infinite."""
    values = np.asarray(values, np.float32)
    if not np.isfinite(values).all():
        return ()
    distinct = np.unique(values)
    return tuple(map(float, distinct if distinct.size == 1 else values.ravel()))
