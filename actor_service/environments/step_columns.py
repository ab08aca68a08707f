"""Reused arrays for the steps of a batch of environments, with the returns and lengths of running episodes."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments.interface import Fault, Step
from actorq.domain.limits import LARGEST_NUMBER, within_numbers
from actorq.domain.spaces import ArraySpec
from actorq.domain.trajectory import Episode

# Maximum length of one dot product. OpenBLAS uses several threads for longer ones.
_PIECE = 8192
_LARGEST_SUM = LARGEST_NUMBER**2


class StepColumns:
    """The arrays of `Step`, and the returns and lengths of the running episodes.

    A backend fills observations, rewards, terminated and truncated, calls `broken`, and then calls `finish`. Ends and
    resets are rare, so `finish` writes flags only when there are some.

    lengths: int64[N], updated here.
    """

    def __init__(self, observations: ArraySpec, lengths: NDArray[np.int64]) -> None:
        count = len(lengths)
        self.observations = np.zeros((count, *observations.shape), observations.dtype)
        # A view with the first two axes joined, which numpy fills and checks faster.
        self.flat = self.observations.reshape(count * observations.shape[0], *observations.shape[1:])
        # Float64 for exact returns. Segments hold float32.
        self.rewards = np.zeros(count)
        self._rewards = np.zeros(count, np.float32)
        self.terminated, self.truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self.valid = np.ones(count, np.bool_)
        self._lengths = lengths
        self._returns = np.zeros(count)
        self._floating = self.observations.dtype.kind == "f"
        checked = [self._rewards]
        if self._floating:
            checked += np.split(self.flat, range(_PIECE, len(self.flat), _PIECE))
        # The squares of float16 numbers overflow the limit. A product with zeros still finds NaN.
        self._checked = [(each, each if each.itemsize > 2 else np.zeros_like(each)) for each in checked]
        self._all_valid = True

    def begin(self) -> None:
        """Start new episodes in all environments."""
        self._lengths[:] = 0
        self._returns[:] = 0.0
        self.terminated[:] = self.truncated[:] = False

    def broken(self) -> list[int]:
        """The environments with NaN or a number beyond `LARGEST_NUMBER` in a reward or observation."""
        self._rewards[:] = self.rewards
        # No number is larger than the root of the sum of squares. A dot product takes a quarter of the time of a
        # comparison and a sum.
        if all(numbers.dot(others) <= _LARGEST_SUM for numbers, others in self._checked):
            return []
        good = within_numbers(self._rewards)
        if self._floating:
            good &= within_numbers(self.observations.reshape(len(good), -1)).all(axis=1)
        return [int(index) for index in np.flatnonzero(~good)]

    def finish(
        self,
        resets: Collection[int],
        endings: Collection[int],
        faults: tuple[Fault, ...] = (),
        infos: Sequence[Any] | None = None,
        with_rows: bool = True,
    ) -> Step:
        """Count the step. `resets`: rows that this step only reset. A row is an environment, or one of its agents.

        `endings`: environments whose episode it ended.
        with_rows: whether the numbers of environments in `faults` are those of rows; if not, `resets` has these rows.

        infos: each environment's info of the step; None from a library that does not report success.
        """
        if not self._all_valid:
            self.valid[:] = True
            self._all_valid = True
        self._lengths += 1
        episodes: tuple[Episode, ...] = ()
        for fault in faults if with_rows else ():
            self._forget(fault.environment)
        # A loop, because usually only one environment ends. Indexing with lists is ten times slower in numpy.
        for index in resets:
            self._forget(index)
        self._returns += self.rewards
        if endings:
            told = infos or [None] * len(self._lengths)
            episodes = tuple(
                Episode(float(self._returns[i]), int(self._lengths[i]), i, success_of(told[i])) for i in endings
            )
        return Step(self.observations, self._rewards, self.terminated, self.truncated, self.valid, episodes, faults)

    def _forget(self, index: int) -> None:
        """Mark the environment's step as not valid. It only began an episode."""
        self.valid[index] = self._all_valid = False
        self.rewards[index] = self._rewards[index] = 0.0
        self.terminated[index] = self.truncated[index] = False
        self._lengths[index] = 0
        self._returns[index] = 0.0


def success_of(info: Any) -> bool | None:
    """Whether an episode ended with success, according to its last info; None if the info does not say."""
    told = info.get("is_success") if isinstance(info, dict) else None
    return bool(told) if isinstance(told, bool | int | float | np.bool_ | np.number) else None
