"""The states of a loaded policy with memory, between the calls of its owner."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.errors import InvalidInputError


class PolicyMemory:
    """The state of each row of observations, float32[B, size]. Not thread-safe. States are zero after `reset`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._states: NDArray[np.float32] | None = None

    def before(self, rows: int) -> NDArray[np.float32]:
        """The states before a step of so many rows. Raises InvalidInputError unless the last step had as many."""
        if self._states is None:
            self._states = np.zeros((rows, self.size), np.float32)
        if len(self._states) != rows:
            raise InvalidInputError(
                f"observation: expected {len(self._states)} rows, as in the steps before, got {rows}; a policy with "
                "memory keeps a state for each row: call reset() before episodes of other rows"
            )
        return self._states

    def after(self, states: NDArray[np.float32]) -> None:
        """Keep the states after a step."""
        self._states = states

    def reset(self, rows: NDArray[np.bool_] | Sequence[int] | int | None = None) -> None:
        """Make the states of these rows zero: indexes, or a mask bool[B]; by default of all rows, of any number.

        Raises InvalidInputError for rows that the last step did not have.
        """
        if rows is None:
            self._states = None
            return
        chosen: NDArray[Any] = np.atleast_1d(np.asarray(rows))
        count = 0 if self._states is None else len(self._states)
        fits = len(chosen) == count if chosen.dtype == np.bool_ else _are_indexes(chosen, count)
        if chosen.ndim != 1 or not fits:
            raise InvalidInputError(
                f"rows: expected indexes below {count}, or a mask of {count} rows, as in the last step, got {rows!r}"
            )
        if self._states is not None:
            self._states = self._states.copy()
            self._states[chosen if chosen.size else chosen.astype(np.int64)] = 0.0


def _are_indexes(chosen: NDArray[Any], count: int) -> bool:
    whole = chosen.dtype.kind in "iu" or not chosen.size
    return bool(whole and ((chosen >= 0) & (chosen < count)).all())
