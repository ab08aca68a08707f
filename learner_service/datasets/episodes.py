"""Recorded episodes: the form between the files of other libraries and the rows of a replay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError


@dataclass(frozen=True)
class Episode:
    """T consecutive steps of one environment, from a reset.

    observations: [T + 1, *observation], single frames; row t + 1 follows action t. actions: [T, *action].
    rewards: [T]. terminated, truncated: whether the episode ended with the last step, and how. A recording that stops
        within an episode counts as truncated.
    policy_versions: int64[T], the acting policy of each step; None if unknown. log_probabilities: float32[T], of the
        actions; None if unknown.
    """

    observations: Array
    actions: Array
    rewards: NDArray[Any]
    terminated: bool
    truncated: bool
    policy_versions: NDArray[np.int64] | None = None
    log_probabilities: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def episode_return(self) -> float:
        """The sum of the rewards."""
        return float(np.sum(self.rewards, dtype=np.float64))


class Source(Protocol):
    """Recorded episodes that can be read once, in order.

    text: where they come from. environment: id of the environment that they were recorded in; empty if unknown.
    """

    text: str
    environment: str

    @property
    def lengths(self) -> Sequence[int]:
        """The steps of each episode."""
        ...

    def __iter__(self) -> Iterator[Episode]: ...


def fitted(episode: Episode, number: int, spec: EnvironmentSpec) -> Episode:
    """The episode with the dtypes of the environment. number: of the episode, for errors.

    Raises UserError when its arrays have other shapes, differ in length, or do not fit into the dtypes.
    """
    steps = len(episode)
    observations = _cast("observations", episode.observations, (steps + 1,), spec.observations, number)
    actions = episode.actions
    if spec.actions.shape == () and actions.ndim == 2 and actions.shape[1] == 1:
        # Some recordings have a column for a discrete action.
        actions = actions[:, 0]
    actions = _cast("actions", actions, (steps,), spec.actions, number)
    return replace(episode, observations=observations, actions=actions, rewards=np.asarray(episode.rewards, np.float32))


def _cast(name: str, found: Array, leading: tuple[int, ...], of: Any, number: int) -> Array:
    shape, dtype = (*leading, *of.shape), np.dtype(of.dtype)
    if found.shape != shape:
        raise UserError(
            f"dataset: episode {number}: expected {name} {list(shape)} as in the environment, got {list(found.shape)}"
        )
    if found.dtype == dtype:
        return found
    if found.dtype.kind not in "fiub":
        raise UserError(f"dataset: episode {number}: expected {name} of numbers, got {found.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = found.astype(dtype)
    # Rounding to float32 is fine. A number that an integer cannot hold is not.
    if dtype.kind != "f" and not np.array_equal(cast, found):
        wrong = found[cast != found].flat[0]
        raise UserError(f"dataset: episode {number}: expected {name} of {dtype}, got {wrong:g} ({found.dtype})")
    return cast
