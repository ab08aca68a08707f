"""Checks that each row of a run with several agents belongs to its agent, its life and its episode."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.chaos.environment import codes_of
from benchmarks.faults.chaos.team import AGENTS, GROUPS, STEPS, acting_at, end_of, places_of
from benchmarks.harness import Target
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.store import ReplayStore

_ACTING = np.zeros((STEPS + 1, len(AGENTS)), np.bool_)
# For each agent the bits of its group.
_BITS = np.array([[agent in group for group in GROUPS.values()] for agent in AGENTS], np.float32)
_TERMINAL, _TRUNCATING = np.zeros_like(_ACTING), np.zeros_like(_ACTING)
for _step in range(STEPS):
    _ACTING[_step, acting_at(_step)] = True
    for _agent in range(len(AGENTS)):
        _TERMINAL[_step, _agent] = end_of(_agent, _step) is True
        _TRUNCATING[_step, _agent] = end_of(_agent, _step) is False


@dataclass(frozen=True)
class RowVerdict:
    """What the rows of the replay show.

    steps: environment steps in which an agent acts. rows: transitions of agents.
    other_agent: rows of another agent than the one of their place in the batch.
    other_group: rows whose bits are not those of their agent's group, so that another policy has acted; 0 without
        groups.
    other_successor: rows whose next observation is not the next one of the same agent, environment and episode.
    wrong_end: rows that end where the agent stays, continue where it leaves, or mix up the kinds of ends.
    wrong_team: environment steps whose rows are not those of exactly the agents that take part.
    absent: rows without a transition, of agents that do not take part or of resets.
    """

    steps: int = 0
    rows: int = 0
    other_agent: int = 0
    other_group: int = 0
    other_successor: int = 0
    wrong_end: int = 0
    wrong_team: int = 0
    absent: int = 0

    def __add__(self, other: "RowVerdict") -> "RowVerdict":
        return RowVerdict(**{name: count + getattr(other, name) for name, count in vars(self).items()})


def judge_rows(store: ReplayStore) -> RowVerdict:
    """Check all rows of the replay, segment by segment."""
    found = RowVerdict()
    for record in store.directory.live:
        if record.rows:
            rows = record.step_rows
            found += judge_segment(store.observations[rows], store.flags[rows[:-1]])
    return found


def judge_segment(observations: NDArray[np.generic], flags: NDArray[np.uint8]) -> RowVerdict:
    """Check the rows of a segment. observations: float32[T + 1, N * A, 4], or 4 and the bits of groups before them.

    flags: uint8[T, N * A].
    """
    agents, *others = places_of(codes_of(observations).reshape(len(observations), -1, len(AGENTS)))
    identities, episodes, steps = others
    bits = flags.reshape(len(flags), -1, len(AGENTS))
    valid, terminated, truncated = ((bits & bit) > 0 for bit in (VALID, TERMINATED, TRUNCATED))
    continued = (
        *(each[1:] == each[:-1] for each in (agents, identities, episodes)),
        steps[1:] == steps[:-1] + 1,
    )
    at = (steps[:-1], agents[:-1])
    is_step = valid.any(axis=2)
    # The rows of a step belong together: they have the places of its first valid row.
    first = valid.argmax(axis=2)[..., None]
    of_first = [np.take_along_axis(each[:-1], first, 2) for each in others]
    together = [(each[:-1] == one) | ~valid for each, one in zip(others, of_first, strict=True)]
    whole = (valid == _ACTING[of_first[2][..., 0]]).all(axis=2) & np.logical_and.reduce(together).all(axis=2)
    seen = observations[:-1, :, :-4].reshape(*valid.shape, -1)
    is_own_group = (seen == _BITS[agents[:-1]]).all(axis=3) if seen.shape[3] else np.ones_like(valid)
    return RowVerdict(
        steps=int(is_step.sum()),
        rows=int(valid.sum()),
        other_agent=int((valid & (agents[:-1] != np.arange(len(AGENTS)))).sum()),
        other_group=int((valid & ~is_own_group).sum()),
        other_successor=int((valid & ~np.logical_and.reduce(continued)).sum()),
        wrong_end=int((valid & ((terminated != _TERMINAL[at]) | (truncated != _TRUNCATING[at]))).sum()),
        wrong_team=int((is_step & ~whole).sum()),
        absent=int((~valid).sum()),
    )


def row_targets(found: RowVerdict) -> list[Target]:
    """The targets of a run with several agents."""
    return [
        Target("rows of another agent than that of their place", found.other_agent, 0),
        Target("rows with the bits of another agent's group", found.other_group, 0),
        Target("rows whose next observation is of another agent, life or episode", found.other_successor, 0),
        Target("rows with another end than that of their agent", found.wrong_end, 0),
        Target("steps without the rows of exactly the agents that take part", found.wrong_team, 0),
        Target("rows of absent agents, as a sign that agents left", found.absent, 1, at_most=False),
    ]
