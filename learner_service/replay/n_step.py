"""Assembles n-step transitions and stacks of frames from single steps, at the time of sampling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array, Column
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.batch import Batch
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.store import ReplayStore

# Makes an uninitialized array of a shape and dtype, in C order.
Allocate = Callable[[tuple[int, ...], str], Array]


@dataclass(frozen=True)
class Returns:
    """Settings that turn rewards into returns.

    n_step: steps of the return, at least 1.
    discount: gamma per step, in [0, 1].
    clip_rewards: bound above 0 of rewards on both sides of 0, as Mnih et al. 2015 with 1 for Atari; None for no bound.
    windows: with n_step above 1, batches have the observations in between.
    """

    n_step: int
    discount: float
    clip_rewards: float | None = None
    windows: bool = False

    def __post_init__(self) -> None:
        if self.n_step < 1 or not 0 <= self.discount <= 1:
            raise UserError(f"replay: need n_step >= 1 and discount in [0, 1], got {self.n_step} and {self.discount}")

    @property
    def longest(self) -> "Returns":
        """The returns with the most steps of the run, as of `DelayedReturns`."""
        return self

    def at(self, inserted: int) -> "Returns":
        """The returns to use after `inserted` transitions, as of `DelayedReturns`."""
        return self


def empty_batch(
    spec: EnvironmentSpec, size: int, returns: Returns, further: Sequence[Column] = (), allocate: Allocate = np.empty
) -> Batch:
    """Uninitialized columns for `size` transitions, with the run's `further` ones. `assemble` can reuse them."""
    between = returns.n_step - 1 if returns.windows else 0
    shape, dtype = spec.policy_observations.shape, spec.observations.dtype
    columns = {
        "observations": (shape, dtype),
        "actions": (spec.actions.shape, spec.actions.dtype),
        "returns": ((), "float32"),
        "bootstrap_discounts": ((), "float32"),
        "bootstrap_observations": (shape, dtype),
        "policy_versions": ((), "int64"),
        **{each.name: (each.shape, each.dtype.name) for each in further},
    }
    if between:
        columns |= {"between_observations": ((between, *shape), dtype), "between_discounts": ((between,), "float32")}
    return Batch(**{name: allocate((size, *shape), dtype) for name, (shape, dtype) in columns.items()})


def assemble(store: ReplayStore, rows: NDArray[np.int64], returns: Returns, out: Batch | None = None) -> Batch:
    """The n-step transitions that start in the valid rows int64[B] (Sutton and Barto 2018, equation 7.1).

        target = return + bootstrap_discount * V(bootstrap)

    observations:           [B, *policy_observation]: single observations, or stacks [B, K, *observation]
    actions:                [B, *action]
    returns:                float32[B], sum of discount^k * reward over the m <= n steps of the window
    bootstrap_discounts:    float32[B], discount^m, or 0 when the window ends in a terminal state
    bootstrap_observations: [B, *policy_observation], the observation or stack after the window
    policy_versions:        int64[B], version of the policy that acted
    and each further column of the run that batches have, of the first step of the window, [B, ...].

    With `returns.windows` and n > 1 also, for targets with a term for each step:

    between_observations:   [B, n - 1, *policy_observation], before the second and later steps of the window; past its
        end the first observation again, which is always finite
    between_discounts:      float32[B, n - 1], discount^k at the k-th step after the first, 0 past the end of the window

    out: receives the columns; made by `empty_batch` for as many rows. For returns without windows, `out` may also have
    the columns in between. The result then lacks these columns.

    A window has at most n steps. It continues from row i to row i + 1 if row i does not end the episode and row i + 1
    is valid. From the end of a segment it continues in the next segment of the same environment, if that segment is
    stored and directly follows. A terminal state ends the sum, without bootstrap. A time limit or the last stored step
    after m steps also ends the sum. Then the bootstrap has discount^m (Pardo et al. 2018, arXiv:1712.00378). Before the
    start of its episode, a stack repeats the episode's first observation.
    """
    batch = empty_batch(store.spec, len(rows), returns, store.batched) if out is None else out
    if "between_discounts" in batch and not (returns.windows and returns.n_step > 1):
        batch = batch.without("between_observations", "between_discounts")
    n = returns.n_step
    window, taken = _windows(store, rows, n)
    steps = np.count_nonzero(taken, axis=1)
    last = window[np.arange(len(rows)), steps - 1]
    powers = np.power(float(returns.discount), np.arange(n + 1))
    rewards = store.rewards[window]
    if returns.clip_rewards is not None:
        np.clip(rewards, -returns.clip_rewards, returns.clip_rewards, out=rewards)
    batch.returns[:] = np.where(taken, rewards, 0.0) @ powers[:n]
    terminated = store.flags[last] & TERMINATED != 0
    batch.bootstrap_discounts[:] = np.where(terminated, 0.0, powers[steps])
    gather_observations(store, rows, batch.observations)
    gather_observations(store, last + 1, batch.bootstrap_observations)
    _gather(store.actions, rows, batch.actions)
    _gather(store.policy_versions, rows, batch.policy_versions)
    for column in store.batched:
        _gather(store.further[column.name], rows, batch.columns[column.name])
    if "between_discounts" in batch:
        inside = taken[:, 1:]
        batch.between_discounts[:] = np.where(inside, powers[1:n], 0.0)
        passed = np.where(inside, window[:, 1:], rows[:, None]).ravel()
        flat = batch.between_observations.reshape(len(passed), *batch.observations.shape[1:])
        gather_observations(store, passed, flat)
    return batch


def _windows(store: ReplayStore, rows: NDArray[np.int64], n: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The n rows from each start, int64[B, n], and which of them belong to the window, bool[B, n]."""
    window = np.empty((n, len(rows)), np.int64)
    window[0] = rows
    for step in range(1, n):
        _gather(store.next_rows, window[step - 1], window[step])
    window = window.T
    flags = store.flags[window]
    taken = flags & VALID != 0
    taken[:, 1:] &= flags[:, :-1] & (TERMINATED | TRUNCATED) == 0
    np.logical_and.accumulate(taken, axis=1, out=taken)
    return window, taken


def gather_observations(store: ReplayStore, rows: NDArray[np.int64], out: Array) -> None:
    """Write the policy observations of rows int64[B], no context rows, to `out`, [B, *policy_observation]."""
    if (stack := store.spec.frame_stack) > 1:
        back = np.minimum(np.arange(stack - 1, -1, -1), store.ages[rows][:, None])
        rows = rows[:, None] - back
    _gather(store.observations, rows, out)


def _gather(column: Array, rows: NDArray[np.int64], out: Array) -> None:
    # The rows are in range. The default mode would copy through a buffer in order to raise.
    np.take(column, rows, axis=0, out=out, mode="clip")
