"""Sequences of trajectories, for policies with memory: the rows of one update come from whole sequences.

A trajectory begins with the stored state of its first segment. A sequence is a part of a trajectory. It begins with the
state that the present policy computes, and gradients do not pass its start.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.domain.columns import state_column
from learner_service.batch import Batch


def begins_of(steps: Batch) -> NDArray[np.bool_]:
    """Where an episode begins with an observation, bool[T + 1, N]: after a step that only reset its environment.

    An episode that begins with the first observation has a stored state of zeros.
    """
    return np.concatenate((np.zeros_like(steps.valid[:1]), ~steps.valid))


def stored_states(steps: Batch, size: int) -> NDArray[np.float32]:
    """The states before the first step of trajectories, float32[N, S]."""
    states: NDArray[np.float32] = steps.columns[state_column(size)][0]
    return states


class Cut:
    """Cuts trajectories of `steps` steps into sequences of equal lengths, at most `longest`, padded with zeros."""

    def __init__(self, steps: int, longest: int) -> None:
        self._count = -(-steps // longest)
        self._length = -(-steps // self._count)

    def steps(self, column: Tensor) -> Tensor:
        """[T, N, ...] -> [length, count * N, ...]."""
        missing = self._count * self._length - len(column)
        padded = torch.cat((column, column.new_zeros((missing, *column.shape[1:])))) if missing else column
        return padded.reshape(self._count, self._length, *column.shape[1:]).transpose(0, 1).flatten(1, 2)

    def starts(self, states: Tensor) -> Tensor:
        """The states before each step, float32[T + 1, N, S], at the starts of sequences: [1, count * N, S]."""
        return states[: self._count * self._length : self._length].flatten(0, 1).unsqueeze(0)


def joined(parts: Sequence[Batch]) -> Batch:
    """The sequences of all parts, [length, M, ...] of the longest length. The column `states` has length 1."""
    longest = max(len(part.valid) for part in parts)

    def padded(column: Tensor) -> Tensor:
        missing = longest - len(column)
        return torch.cat((column, column.new_zeros((missing, *column.shape[1:])))) if missing else column

    whole = [part.map(padded).with_columns(states=part.states) for part in parts]
    return Batch(**{name: torch.cat([each.columns[name] for each in whole], 1) for name in whole[0].columns})


def chosen(sequences: Batch, places: Tensor) -> Batch:
    """The sequences at these places, int64[M]."""
    return sequences.map(lambda column: column.index_select(1, places))


def shuffled(sequences: Batch, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """All sequences once in random order, in minibatches with nearly `batch_size` transitions each."""
    count = sequences.valid.shape[1]
    parts = min(count, max(1, round(int(sequences.valid.sum()) / batch_size)))
    order = torch.randperm(count, generator=generator, device=sequences.valid.device)
    for places in order.tensor_split(parts):
        yield chosen(sequences, places)


def rows_of(sequences: Batch) -> Batch:
    """The transitions of sequences as rows [B, ...], without the columns `states`, `begins` and `valid`."""
    places = sequences.valid.flatten().nonzero().squeeze(1)
    columns = sequences.without("states", "begins", "valid")
    return columns.map(lambda column: column.flatten(0, 1).index_select(0, places))
