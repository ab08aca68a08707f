"""Assembles sequences of steps with their n-step returns, at the time of sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from actorq.domain.columns import Column, state_column
from actorq.domain.spaces import EnvironmentSpec
from learner_service.batch import Batch
from learner_service.replay.n_step import Allocate, Returns
from learner_service.replay.recurrent.starts import SegmentStarts
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.store import ReplayStore


@dataclass(frozen=True)
class SequenceShape:
    """The steps of a sequence: first `burn_in` steps that only prepare the state, then `trained` steps.

    tail: further steps for the returns of the last trained steps, n - 1. state_size: numbers in a stored state, S.
    """

    burn_in: int
    trained: int
    tail: int
    state_size: int

    @property
    def steps(self) -> int:
        """All steps."""
        return self.burn_in + self.trained + self.tail


def empty_sequences(
    spec: EnvironmentSpec,
    size: int,
    shape: SequenceShape,
    windows: bool,
    further: Sequence[Column] = (),
    allocate: Allocate = np.empty,
) -> Batch:
    """Uninitialized columns for `size` sequences, with the run's `further` ones; see `assemble_sequences`."""
    policy, rows, trained = spec.policy_observations, shape.steps + 1, shape.trained
    columns: dict[str, tuple[tuple[int, ...], str]] = {
        "observations": ((rows, *policy.shape), spec.observations.dtype),
        "begins": ((rows,), "bool"),
        "states": ((shape.state_size,), "float32"),
        "mask": ((trained,), "bool"),
        "actions": ((trained, *spec.actions.shape), spec.actions.dtype),
        "returns": ((trained,), "float32"),
        "bootstrap_discounts": ((trained,), "float32"),
        "bootstrap_steps": ((trained,), "int64"),
        **{each.name: ((trained, *each.shape), each.dtype.name) for each in further},
    }
    if windows and shape.tail:
        columns["between_discounts"] = ((trained, shape.tail), "float32")
    return Batch(**{name: allocate((size, *each), dtype) for name, (each, dtype) in columns.items()})


def transitions_of(batch: Batch) -> int:
    """Number of trained steps in a batch of sequences."""
    return int(np.count_nonzero(batch.mask))


def assemble_sequences(
    store: ReplayStore,
    starts: SegmentStarts,
    rows: NDArray[np.int64],
    shape: SequenceShape,
    returns: Returns,
    out: Batch,
) -> Batch:
    """The sequences that begin in the rows int64[B], first steps of segments, into `out`.

    With L = burn_in + trained + tail steps and R trained steps:

    observations:        [B, L + 1, *policy_observation], before each step and after the last one
    begins:              bool[B, L + 1], where an episode begins with an observation: after a step that only reset its
        environment. The state before such an observation is zero.
    states:              float32[B, S], the stored states before the first observations
    mask:                bool[B, R], trained steps that exist and are no resets
    actions:             [B, R, *action]
    returns:             float32[B, R], n-step returns as in `assemble`, from trained steps
    bootstrap_discounts: float32[B, R], as in `assemble`; 0 outside of the mask
    bootstrap_steps:     int64[B, R], the position of the observation after the window, among L + 1
    between_discounts:   float32[B, R, tail] with `returns.windows`: discount^k at the k-th step after each trained
        step, 0 past the end of its window
    and each further column of the run that batches have, of trained steps, [B, R, ...].

    Observations past the last stored step repeat its bootstrap observation, and have no effect.
    """
    at, exist = starts.followed(rows, shape.steps + 1)
    flags = np.where(exist, store.flags[at], 0)
    valid, ended = flags & VALID != 0, flags & (TERMINATED | TRUNCATED) != 0
    np.take(store.observations, at, axis=0, out=out.observations, mode="clip")
    out.begins[:, 0] = False
    np.logical_and(exist[:, :-1], ~valid[:, :-1], out=out.begins[:, 1:])
    out.states[:] = store.further[state_column(shape.state_size)][rows]
    trained = at[:, shape.burn_in : shape.burn_in + shape.trained]
    np.take(store.actions, trained, axis=0, out=out.actions, mode="clip")
    for column in store.batched:
        np.take(store.further[column.name], trained, axis=0, out=out.columns[column.name], mode="clip")
    n = returns.n_step
    used = slice(shape.burn_in, shape.burn_in + shape.trained + n - 1)
    taken = sliding_window_view(valid[:, used], n, axis=1).copy()
    taken[..., 1:] &= ~sliding_window_view(ended[:, used], n, axis=1)[..., :-1]
    np.logical_and.accumulate(taken, axis=2, out=taken)
    steps, powers = np.count_nonzero(taken, axis=2), np.power(float(returns.discount), np.arange(n + 1))
    rewards = store.rewards[at[:, used]]
    if returns.clip_rewards is not None:
        np.clip(rewards, -returns.clip_rewards, returns.clip_rewards, out=rewards)
    out.mask[:] = taken[..., 0]
    out.returns[:] = np.where(taken, sliding_window_view(rewards, n, axis=1), 0.0) @ powers[:n]
    out.bootstrap_steps[:] = shape.burn_in + np.arange(shape.trained) + steps
    last = np.take_along_axis(flags, np.maximum(out.bootstrap_steps - 1, 0), 1)
    stops = ~out.mask | (last & TERMINATED != 0)
    out.bootstrap_discounts[:] = np.where(stops, 0.0, powers[steps])
    if "between_discounts" in out:
        out.between_discounts[:] = 0.0
        out.between_discounts[..., : n - 1] = np.where(taken[..., 1:], powers[1:n], 0.0)
    return out
