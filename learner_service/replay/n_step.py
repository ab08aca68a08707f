"""N-step transitions assembled from single steps at the time of sampling."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actorq.errors import InvalidInputError
from actorq.trajectory import Array, EnvironmentSpec
from learner_service.replay.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.store import ReplayStore


@dataclass(frozen=True)
class NStepBatch:
    """B n-step transitions (Sutton and Barto 2018, equation 7.1): target = return + bootstrap_discount * V(bootstrap).

    observations:           [B, *observation]
    actions:                [B, *action]
    returns:                float32[B], sum of discount^k * reward over the m <= n steps of the window
    bootstrap_discounts:    float32[B], discount^m, and 0 where the window ended in a terminal state
    bootstrap_observations: [B, *observation], the observation after the window
    policy_versions:        int64[B], the policy that took the action
    """

    observations: Array
    actions: Array
    returns: NDArray[np.float32]
    bootstrap_discounts: NDArray[np.float32]
    bootstrap_observations: Array
    policy_versions: NDArray[np.int64]

    @classmethod
    def empty(cls, spec: EnvironmentSpec, size: int) -> "NStepBatch":
        """Uninitialised arrays for `size` transitions, to pass to `assemble` again and again."""
        return cls(
            observations=np.empty((size, *spec.observations.shape), spec.observations.dtype),
            actions=np.empty((size, *spec.actions.shape), spec.actions.dtype),
            returns=np.empty(size, np.float32),
            bootstrap_discounts=np.empty(size, np.float32),
            bootstrap_observations=np.empty((size, *spec.observations.shape), spec.observations.dtype),
            policy_versions=np.empty(size, np.int64),
        )


def assemble(
    store: ReplayStore, rows: NDArray[np.int64], n: int, discount: float, out: NStepBatch | None = None
) -> NStepBatch:
    """The n-step transitions that start in the valid rows int64[B]; written to `out` if given, of the same size.

    The window of row i goes on to row i + 1 while the episode has not ended in row i and row i + 1 is valid, for at
    most n steps. A terminal state ends the sum and is not bootstrapped from; a time limit and the end of a segment end
    the sum early and are bootstrapped from with discount^m, m being the steps taken (Pardo et al. 2018,
    arXiv:1712.00378). Raises InvalidInputError when a row is not valid or `out` has another size.
    """
    batch = NStepBatch.empty(store.spec, len(rows)) if out is None else out
    if len(batch.returns) != len(rows):
        raise InvalidInputError(f"replay: output buffers must have {len(rows)} rows, got {len(batch.returns)}")
    # A valid row always has a follower in its segment, so the last row of the ring is never valid: indices clipped to
    # it end the window like any other invalid row.
    window = np.minimum(rows[:, None] + np.arange(n), store.capacity - 1)
    flags = store.flags[window]
    taken = flags & VALID != 0
    if not taken[:, 0].all():
        raise InvalidInputError("replay: n-step windows must start in valid rows; were some evicted since the draw?")
    taken[:, 1:] &= flags[:, :-1] & (TERMINATED | TRUNCATED) == 0
    np.logical_and.accumulate(taken, axis=1, out=taken)
    steps = np.count_nonzero(taken, axis=1)
    powers = np.power(float(discount), np.arange(n + 1))
    batch.returns[:] = np.where(taken, store.rewards[window], 0.0) @ powers[:n]
    terminated = flags[np.arange(len(rows)), steps - 1] & TERMINATED != 0
    batch.bootstrap_discounts[:] = np.where(terminated, 0.0, powers[steps])
    _gather(store.observations, rows, batch.observations)
    _gather(store.observations, rows + steps, batch.bootstrap_observations)
    _gather(store.actions, rows, batch.actions)
    _gather(store.policy_versions, rows, batch.policy_versions)
    return batch


def _gather(column: Array, rows: NDArray[np.int64], out: Array) -> None:
    # The rows are known to be in range; the default mode would copy through a buffer to be able to raise.
    np.take(column, rows, axis=0, out=out, mode="clip")
