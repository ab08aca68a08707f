"""Policies for batches whose size changes from step to step: one session for each of a few sizes."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.policies.policy import LoadPolicy, OnnxPolicy, load_policy, needs_of
from actorq.domain.policy import Policy
from actorq.domain.spaces import EnvironmentSpec

SIZES = (1, 8, 32, 128)
"""Rows of the sessions. A batch uses the smallest session that holds it, and larger batches several sessions."""


class SizedPolicy(OnnxPolicy):
    """A policy with sessions for several numbers of rows. As an OnnxPolicy it has one row.

    A session is opened when a batch first needs its size. `used` then contains the size, so that the loader opens that
    session for later versions before they act.
    """

    def __init__(
        self, policy: Policy, spec: EnvironmentSpec, needs: Collection[str], used: set[int], load: LoadPolicy
    ) -> None:
        """Open the sessions of all `used` sizes. Raises InvalidInputError as `load_policy` does."""
        super().__init__(policy, spec.policy_observations, 1, spec.acting_size, needs_of(spec, needs))
        self._load, self._policy, self._spec, self._needs, self._used = load, policy, spec, needs, used
        self._sessions: dict[int, OnnxPolicy] = {1: self}
        for size in tuple(used):
            self.of_size(size)

    def of_size(self, size: int) -> OnnxPolicy:
        """The session with this number of rows."""
        if size not in self._sessions:
            self._sessions[size] = self._load(self._policy, self._spec, size, self._needs)
            self._used.add(size)
        return self._sessions[size]

    def observed(self, observations: NDArray[Any], states: NDArray[np.float32]) -> None:
        """Pass observations [k, ...] and the states before them to `on_observations`, row by row."""
        for row in range(len(observations)):
            if self.on_observations is None:
                return
            np.copyto(self.state, states[row : row + 1])
            self.on_observations(self, observations[row : row + 1])


class SizedLoader:
    """Loads policies as `SizedPolicy`. All versions have sessions for the sizes that were used so far."""

    def __init__(self, load: LoadPolicy = load_policy) -> None:
        self._load = load
        self._used: set[int] = set()

    def __call__(self, policy: Policy, spec: EnvironmentSpec, batch: int, needs: Collection[str] = ()) -> SizedPolicy:
        """See `LoadPolicy`. `batch` has no effect."""
        return SizedPolicy(policy, spec, needs, self._used, self._load)


def chunks(count: int) -> Iterator[tuple[int, int, int]]:
    """Cut `count` rows into batches: start, stop, and rows of the session, at least as many."""
    start = 0
    while start < count:
        left = count - start
        size = next((each for each in SIZES if each >= left), SIZES[-1])
        stop = min(count, start + size)
        yield start, stop, size
        start = stop


def padded(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """Rows [k, ...] with copies of the first row up to `size` rows, so that ranges over all rows do not change."""
    missing = size - len(rows)
    return np.concatenate((rows, np.broadcast_to(rows[:1], (missing, *rows.shape[1:])))) if missing else rows
