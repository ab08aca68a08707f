"""The columns of a run's segments: one list that segments, messages, replay and bounds iterate over.

To add a column, declare it in `FURTHER` and fill it in the actor: in the `columns` of a behavior policy. A run names
the further columns that it needs (`RunSpec.columns`). Code between the producer and the reader knows no column by
name.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.goals import HINDSIGHT, HindsightColumns
from actorq.domain.limits import MAX_STATE
from actorq.domain.spaces import EnvironmentSpec

Array = NDArray[np.generic]

_STATE = re.compile(r"state_([1-9][0-9]{0,6})")


class Per(Enum):
    """The number of entries of a column, in each environment of a segment of T steps.

    ROW: one for each of the K - 1 + T + 1 rows of observations, with K the frame stack. STEP: one for each of T steps.
    SEGMENT: one.
    """

    ROW = "row"
    STEP = "step"
    SEGMENT = "segment"


@dataclass(frozen=True)
class Column:
    """One array of a segment, [rows, N, *shape], [T, N, *shape] or [N, *shape]. With several agents, N counts each.

    batched: whether algorithms get the column in their batches. Other columns are for the replay only.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    per: Per = Per.STEP
    batched: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of one entry."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array_shape(self, steps: int, environments: int, frame_stack: int) -> tuple[int, ...]:
        """Shape of the column in a segment."""
        if self.per is Per.SEGMENT:
            return (environments, *self.shape)
        return (steps if self.per is Per.STEP else frame_stack + steps, environments, *self.shape)


def columns_of(spec: EnvironmentSpec, further: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns of a run's segments in this environment.

    further: names of further columns that the run needs. Columns that this environment lacks are left out.
    """
    return *_basic_columns(spec), *own_columns(spec, further)


def own_columns(spec: EnvironmentSpec, further: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns of `columns_of` that not every run has."""
    wanted = (declare(spec) for name, declare in FURTHER.items() if name in further)
    states = (_state(name) for name in further if state_size_of(name))
    present = (Column(PRESENT, (), np.dtype(np.bool_), batched=False),) if spec.agents else ()
    return (*present, *(column for column in wanted if column is not None), *states)


def _basic_columns(spec: EnvironmentSpec) -> tuple[Column, ...]:
    flag = np.dtype(np.bool_)
    return (
        Column("observations", spec.observations.shape, np.dtype(spec.observations.dtype), Per.ROW),
        Column("actions", spec.actions.shape, np.dtype(spec.actions.dtype)),
        Column("rewards", (), np.dtype(np.float32)),
        Column("terminated", (), flag),
        Column("truncated", (), flag),
        Column("valid", (), flag),
        Column("ages", (), np.dtype(np.uint8), Per.SEGMENT),
    )


def unknown_columns(names: Iterable[str]) -> list[str]:
    """The names that no declaration of a further column has, sorted."""
    return sorted(name for name in names if name not in FURTHER and not state_size_of(name))


def _state(name: str) -> Column:
    return Column(name, (state_size_of(name),), np.dtype(np.float32), Per.SEGMENT, batched=False)


def state_column(size: int) -> str:
    """The name of the column with states of this many numbers."""
    return f"state_{size}"


def state_size_of(name: str) -> int:
    """The size of the states in the column of this name; 0 for any other column, and for a size out of range."""
    found = _STATE.fullmatch(name)
    size = int(found[1]) if found else 0
    return size if size <= MAX_STATE else 0


def state_size_in(names: tuple[str, ...]) -> int:
    """The size of the states in a run with these further columns; 0 without memory."""
    return max(map(state_size_of, names), default=0)


def _hindsight(each: HindsightColumns) -> dict[str, Callable[[EnvironmentSpec], Column | None]]:
    """The columns of other goals, for environments with goals."""
    copies, flag = each.copies, np.dtype(np.bool_)

    return {
        each.goals: lambda spec: (
            spec.goal and Column(each.goals, (copies, spec.goal.size), np.dtype(spec.observations.dtype), batched=False)
        ),
        each.rewards: lambda spec: spec.goal and Column(each.rewards, (copies,), np.dtype(np.float32), batched=False),
        each.terminated: lambda spec: spec.goal and Column(each.terminated, (copies,), flag, batched=False),
    }


GREEDY_ACTIONS, LOG_PROBABILITIES = "greedy_actions", "log_probabilities"
PRESENT = "present"
"""bool[T, N], in every run with several agents: whether the observation of a step is the agent's own. An absent agent's
row repeats the observation of another agent of its environment, and is not valid.
"""

FURTHER: Mapping[str, Callable[[EnvironmentSpec], Column | None]] = {
    GREEDY_ACTIONS: lambda spec: (
        None if spec.sizes else Column(GREEDY_ACTIONS, spec.actions.shape, np.dtype(spec.actions.dtype), batched=False)
    ),
    LOG_PROBABILITIES: lambda spec: Column(LOG_PROBABILITIES, (), np.dtype(np.float32)),
    **{name: declare for each in HINDSIGHT for name, declare in _hindsight(each).items()},
}
"""Columns that only some runs have, by name. The function returns None if the environment has no such column.

greedy_actions: [T, N, *action], continuous actions only: the policy's actions without noise. During uniformly random
    exploration they are the random actions.
log_probabilities: float32[T, N], logarithm of the probability (or density) with which the acting policy drew each
    action.
hindsight_goals_K, hindsight_rewards_K, hindsight_terminated_K: K other goals of each step, in environments with goals;
    see `HindsightColumns`.
state_S: float32[N, S], the recurrent policy's state before the segment's first step, zero where an episode begins. S
    may be any size, so this dict does not list it.
"""
