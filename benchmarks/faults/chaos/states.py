"""Checks that no segment begins with the state of another episode.

The policy of the run keeps its first weights, because its step size is tiny. The state before a step is therefore a
function of the earlier observations of the episode. This module computes it again from the stored observations, in
FP32. The actors' states are those of int8 policies, so small differences are no fault. The observations of each episode
differ, so the states of other episodes differ much more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import state_size_in
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.signature import NEXT_STATE, Role
from actorq.quantization.graph import Graph
from benchmarks.faults.chaos.environment import codes_of, places_of
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.store import ReplayStore
from quantizer_service.emission.reference import Reference
from quantizer_service.emission.sequences import state_spans
from quantizer_service.store.reader import PolicyReader

# A step size with which no weight changes in float32.
FROZEN = 1e-12
UNITS = 16
# The mean difference of a state, relative to the ranges of its numbers, from which on it belongs to another episode.
TOLERANCE = 0.02
_CHANGED = 1e-4

States = NDArray[np.float32]
Step = Callable[[States, States], States]


@dataclass(frozen=True)
class Starts:
    """First steps of segments: their codes uint64[n], and the stored states before them float32[n, S]."""

    codes: NDArray[np.uint64]
    states: States


@dataclass(frozen=True)
class StateVerdict:
    """What the stored states show.

    starts: valid first steps of segments, of all environments. checked: those with all earlier observations of their
        episode. begun: those at the first step of an episode.
    foreign: checked states that are not those of their episode. not_zero: states at the first step of an episode that
        are not zero.
    told_apart: share of states that would be foreign if they were compared with another episode.
    largest: the largest difference of a checked state, relative to the ranges.
    """

    starts: int
    checked: int
    begun: int
    foreign: int
    not_zero: int
    told_apart: float
    largest: float


class FrozenPolicy:
    """The FP32 policy of a run that does not change. Raises SystemExit if its weights have changed.

    folder: of the quantizer's policies.
    """

    def __init__(self, folder: Path) -> None:
        reader = PolicyReader(folder)
        versions = [each.version for each in reader.versions()]
        checkpoint, oldest = (reader.checkpoint(version) for version in (versions[0], versions[-1]))
        for name, values in checkpoint.parameters.items():
            if (change := float(np.abs(values - oldest.parameters[name]).max())) > _CHANGED:
                raise SystemExit(f"{folder}: expected equal weights in all versions, got {name} changed by {change:g}")
        self._reference = Reference(Graph.parse(reader.graphs[checkpoint.graph_digest]))
        self._parameters = checkpoint.parameters

    def __call__(self, observations: States, states: States) -> States:
        """The states after a step, float32[B, S]. observations: [B, 4]. states: float32[B, S]."""
        outputs = self._reference.run(self._parameters, {OBSERVATIONS: observations, Role.STATE: states})
        return outputs[NEXT_STATE].astype(np.float32)


def starts_of(store: ReplayStore) -> Starts:
    """The first valid steps of all segments in the replay, with their states."""
    (name,) = (each for each in store.further if state_size_in((each,)))
    first = [record.step_rows[0] for record in store.directory.live if record.rows]
    rows = np.concatenate(first) if first else np.empty(0, np.int64)
    rows = rows[(store.flags[rows] & VALID) > 0]
    return Starts(codes_of(store.observations[rows]), np.asarray(store.further[name][rows], np.float32))


def judge_states(observations: NDArray[np.generic], starts: Starts, policy: Step) -> StateVerdict:
    """Compare the states at the starts of segments with those that the policy computes from the stored observations.

    observations: float32[n, 4] of all valid rows. policy: maps observations [B, 4] and states [B, S] to the next
        states.
    """
    identities, episodes, steps = places_of(codes_of(observations))
    keys, of_row = np.unique(np.stack([identities, episodes], 1), axis=0, return_inverse=True)
    of_row = of_row.ravel()
    size, length = starts.states.shape[1], int(steps.max(initial=0)) + 1
    seen = np.zeros((length, len(keys), observations.shape[1]), np.float32)
    known = np.zeros((length + 1, len(keys)), np.bool_)
    seen[steps, of_row], known[steps + 1, of_row] = observations, True
    known[0] = True
    # Whether all observations before each step are stored.
    known = np.logical_and.accumulate(known, axis=0)
    expected = np.zeros((length, len(keys), size), np.float32)
    for step in range(1, length):
        expected[step] = policy(seen[step - 1], expected[step - 1])
    own, at = _places(starts.codes, keys)
    is_checked = known[at, own]
    spans = state_spans(expected[known[:length]])
    error = np.abs((starts.states - expected[at, own]) / spans).mean(axis=1)
    # The same steps of another episode of the run.
    other = np.abs((starts.states - expected[at, (own + 1) % len(keys)]) / spans).mean(axis=1)
    compared = is_checked & (at > 0) & known[at, (own + 1) % len(keys)]
    begun = at == 0
    return StateVerdict(
        starts=len(at),
        checked=int(is_checked.sum()),
        begun=int(begun.sum()),
        foreign=int((error[is_checked] > TOLERANCE).sum()),
        not_zero=int(starts.states[begun].any(axis=1).sum()),
        told_apart=float((other[compared] > TOLERANCE).mean()) if compared.any() else 0.0,
        largest=float(error[is_checked].max(initial=0.0)),
    )


def _places(codes: NDArray[np.uint64], keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of the episode among `keys`, and the step in it, of each code: int64[n], int64[n]."""
    identities, episodes, steps = places_of(codes)
    wanted = np.stack([identities, episodes], 1)
    numbers = {tuple(key): number for number, key in enumerate(keys.tolist())}
    return np.array([numbers[tuple(each)] for each in wanted.tolist()], np.int64), steps
