"""Assembles n-step transitions and stacks of frames from single steps, at the time of sampling."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.store import ReplayStore


@dataclass(frozen=True)
class NStepBatch:
    """B n-step transitions (Sutton and Barto 2018, equation 7.1): target = return + bootstrap_discount * V(bootstrap).

    observations:           [B, *policy_observation]: single observations, or stacks [B, K, *observation]
    actions:                [B, *action]
    returns:                float32[B], sum of discount^k * reward over the m <= n steps of the window
    bootstrap_discounts:    float32[B], discount^m, or 0 when the window ends in a terminal state
    bootstrap_observations: [B, *policy_observation], the observation or stack after the window
    policy_versions:        int64[B], version of the policy that acted
    """

    observations: Array
    actions: Array
    returns: NDArray[np.float32]
    bootstrap_discounts: NDArray[np.float32]
    bootstrap_observations: Array
    policy_versions: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns together."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))


@dataclass(frozen=True)
class WindowBatch(NStepBatch):
    """N-step transitions with the observations in between, for targets with a term for each step.

    between_observations: [B, n - 1, *policy_observation], before the second and later steps of the window; past its end
        the first observation again, which is always finite
    between_discounts:    float32[B, n - 1], discount^k at the k-th step after the first, 0 past the end of the window
    """

    between_observations: Array
    between_discounts: NDArray[np.float32]


@dataclass(frozen=True)
class Returns:
    """Settings that turn rewards into returns.

    n_step: steps of the return, at least 1.
    discount: gamma per step, in [0, 1].
    clip_rewards: clip rewards to [-clip_rewards, clip_rewards] before the sum, as Mnih et al. 2015 with 1 for Atari;
        above 0, or None for no clipping.
    windows: with n_step above 1, batches are WindowBatches, with the observations in between.
    """

    n_step: int
    discount: float
    clip_rewards: float | None = None
    windows: bool = False

    def __post_init__(self) -> None:
        """Raise UserError when a number of the algorithm is out of range."""
        if self.n_step < 1 or not 0 <= self.discount <= 1:
            raise UserError(f"replay: need n_step >= 1 and discount in [0, 1], got {self.n_step} and {self.discount}")


def empty_batch(
    spec: EnvironmentSpec, size: int, returns: Returns, allocate: Callable[[tuple[int, ...], str], Array] = np.empty
) -> NStepBatch:
    """Uninitialized arrays for `size` transitions, of the kind that these returns need. `assemble` can reuse them.

    allocate: makes an array of a shape and dtype, in C order.
    """
    shape, dtype, between = spec.policy_observations.shape, spec.observations.dtype, returns.n_step - 1
    batch = NStepBatch(
        observations=allocate((size, *shape), dtype),
        actions=allocate((size, *spec.actions.shape), spec.actions.dtype),
        returns=allocate((size,), "float32").view(np.float32),
        bootstrap_discounts=allocate((size,), "float32").view(np.float32),
        bootstrap_observations=allocate((size, *shape), dtype),
        policy_versions=allocate((size,), "int64").view(np.int64),
    )
    if not (returns.windows and between):
        return batch
    return WindowBatch(
        **vars(batch),
        between_observations=allocate((size, between, *shape), dtype),
        between_discounts=allocate((size, between), "float32").view(np.float32),
    )


def assemble(
    store: ReplayStore, rows: NDArray[np.int64], returns: Returns, out: NStepBatch | None = None
) -> NStepBatch:
    """The n-step transitions that start in the valid rows int64[B].

    out: receives the arrays; made by `empty_batch` for as many rows. For returns without windows, a WindowBatch may
    serve as `out`. The result then has its other arrays only.

    A window has at most n steps. It continues from row i to row i + 1 if row i does not end the episode and row i + 1
    is valid. From the end of a segment it continues in the next segment of the same environment, if that segment is
    stored and directly follows. A terminal state ends the sum, without bootstrap. A time limit or the last stored step
    after m steps also ends the sum. Then the bootstrap has discount^m (Pardo et al. 2018, arXiv:1712.00378). Before the
    start of its episode, a stack repeats the episode's first observation.
    """
    batch = empty_batch(store.spec, len(rows), returns) if out is None else out
    if isinstance(batch, WindowBatch) and not (returns.windows and returns.n_step > 1):
        batch = NStepBatch(**{field.name: getattr(batch, field.name) for field in fields(NStepBatch)})
    n = returns.n_step
    window = np.empty((n, len(rows)), np.int64)
    window[0] = rows
    for step in range(1, n):
        _gather(store.next_rows, window[step - 1], window[step])
    window = window.T
    flags = store.flags[window]
    taken = flags & VALID != 0
    taken[:, 1:] &= flags[:, :-1] & (TERMINATED | TRUNCATED) == 0
    np.logical_and.accumulate(taken, axis=1, out=taken)
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
    if isinstance(batch, WindowBatch):
        inside = taken[:, 1:]
        batch.between_discounts[:] = np.where(inside, powers[1:n], 0.0)
        passed = np.where(inside, window[:, 1:], rows[:, None]).ravel()
        flat = batch.between_observations.reshape(len(passed), *batch.observations.shape[1:])
        gather_observations(store, passed, flat)
    return batch


def gather_observations(store: ReplayStore, rows: NDArray[np.int64], out: Array) -> None:
    """Write the policy observations of rows int64[B], no context rows, to `out`, [B, *policy_observation]."""
    stack = store.spec.frame_stack
    if stack > 1:
        back = np.minimum(np.arange(stack - 1, -1, -1), store.ages[rows][:, None])
        rows = rows[:, None] - back
    _gather(store.observations, rows, out)


def _gather(column: Array, rows: NDArray[np.int64], out: Array) -> None:
    # The rows are in range. The default mode would copy through a buffer in order to raise.
    np.take(column, rows, axis=0, out=out, mode="clip")
