"""Chooses stored sequences of steps, on which the quantizer judges the state of a policy with memory."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import state_column
from actorq.domain.limits import MAX_SEQUENCE_STEPS, MAX_SEQUENCES
from actorq.domain.policy import SEQUENCE_LENGTHS
from actorq.domain.signature import Role
from learner_service.policy.policy_graph import calibration_batch
from learner_service.replay import SegmentBuffer
from learner_service.replay.n_step import gather_observations
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.directory import Record
from learner_service.replay.storage.store import ReplayStore

# Sequences begin with one of the newest segments that have this many environment steps. Later segments may continue
# them.
_NEWEST_STEPS = 4 * MAX_SEQUENCES * MAX_SEQUENCE_STEPS
_MOST_SEGMENTS = 256
# Bound on the observations of all sequences. Images get fewer sequences.
_MOST_BYTES = 4 * 1024**2

Kept = Callable[[NDArray[Any]], NDArray[np.bool_]]


def newest_sequences(
    buffer: SegmentBuffer, state_size: int, takes_noise: bool, seed: int, kept: Kept
) -> dict[str, NDArray[Any]]:
    """The longest sequences that begin in the newest segments, as `Checkpoint.sequences`; empty without any.

    A sequence has steps of one episode in one environment, and the stored state before its first step.
    state_size: numbers in a state. takes_noise, seed: see `calibration_batch`.
    kept: whether each of some observations is no outlier. Sequences with outliers are left out.
    """
    observations, states, lengths = buffer.newest_segments(
        _MOST_SEGMENTS, _NEWEST_STEPS, lambda store, records: _read(store, records, state_column(state_size))
    )
    if len(lengths):
        used = np.arange(len(observations))[:, None] < lengths
        good = (kept(observations.reshape(-1, *observations.shape[2:])).reshape(used.shape) | ~used).all(axis=0)
        observations, states, lengths = observations[:, good], states[good], lengths[good]
    if not len(lengths):
        return {}
    rows = observations[: lengths[0]].reshape(-1, *observations.shape[2:])
    inputs = calibration_batch(rows, buffer.spec, takes_noise, seed)
    shape = int(lengths[0]), len(lengths)
    return {
        SEQUENCE_LENGTHS: lengths,
        Role.STATE: states,
        **{name: batch.reshape(*shape, *batch.shape[1:]) for name, batch in inputs.items()},
    }


def _read(
    store: ReplayStore, records: Sequence[Record], column: str
) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.int32]]:
    """Observations [T, K, *policy_observation], states float32[K, S] and lengths int32[K], the longest first."""
    starts = np.concatenate([np.empty(0, np.int64), *(record.step_rows[0] for record in records)])
    rows, lengths = _followed(store, starts)
    policy = store.spec.policy_observations
    nbytes = MAX_SEQUENCE_STEPS * max(1, policy.nbytes)
    chosen = _longest(lengths, max(1, min(MAX_SEQUENCES, _MOST_BYTES // nbytes)))
    rows, lengths = rows[: lengths[chosen].max(initial=0), chosen], lengths[chosen]
    observations: NDArray[Any] = np.empty((rows.size, *policy.shape), policy.dtype)
    gather_observations(store, rows.ravel(), observations)
    states = np.array(store.further[column][starts[chosen]], np.float32)
    return observations.reshape(*rows.shape, *policy.shape), states, lengths.astype(np.int32)


def _followed(store: ReplayStore, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows from each start to the end of its episode or data, int64[T, B], and how many they are, int64[B].

    The first row is repeated after the last one.
    """
    rows, lengths = np.tile(starts, (MAX_SEQUENCE_STEPS, 1)), np.zeros(len(starts), np.int64)
    going, now = np.ones(len(starts), np.bool_), starts
    for step in range(MAX_SEQUENCE_STEPS):
        flags = store.flags[now]
        going = going & (flags & VALID != 0)
        rows[step] = np.where(going, now, starts)
        lengths += going
        going = going & (flags & (TERMINATED | TRUNCATED) == 0)
        now = np.where(going, store.next_rows[now], now)
    return rows, lengths


def _longest(lengths: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The places of the longest sequences, the longest first; evenly spaced if too many are equally long."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    equal = np.count_nonzero(lengths == lengths[order[0]]) if len(order) else 0
    if equal > most:
        return order[np.linspace(0, equal - 1, most).round().astype(np.int64)]
    return order[:most]
