"""Environments whose agents are in groups, and observations with the bits of the groups."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.environments import EnvironmentArguments, Group
from actorq.domain.spaces import ArraySpec, EnvironmentSpec

AGENTS = ("red", "green", "blue")
GROUPS = (Group("pair", ("green", "blue"), 1), Group("solo", ("red",), 2))
FIRST_BIT, SIZE = 1, 5


def grouped(spec: EnvironmentSpec, first_bit: int = FIRST_BIT) -> EnvironmentSpec:
    """The environment with three agents in two groups: three numbers, and two bits among them."""
    return replace(
        spec,
        observations=ArraySpec((SIZE,), "float32"),
        environment_arguments=EnvironmentArguments(agent_groups=tuple((each.name, each.agents) for each in GROUPS)),
        indicators=(first_bit, first_bit + 2),
        agents=AGENTS,
        groups=tuple(replace(each, bit=first_bit + number) for number, each in enumerate(GROUPS)),
    )


def with_groups(
    observations: NDArray[Any], groups: NDArray[np.integer] | int, first_bit: int = FIRST_BIT
) -> NDArray[Any]:
    """The observations [..., SIZE] with the bits of these groups, by their numbers [...]."""
    found = observations.copy()
    found[..., first_bit : first_bit + 2] = np.eye(2)[np.broadcast_to(groups, observations.shape[:-1])]
    return found


def random_rows(rows: int, groups: NDArray[np.integer] | int | None = None, seed: int = 0) -> NDArray[np.float32]:
    """Random observations float32[rows, SIZE] of these groups, by default of random ones."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(2, size=rows) if groups is None else groups
    return with_groups(rng.standard_normal((rows, SIZE), np.float32), chosen)
