"""Advantages and value targets of trajectories: generalized advantage estimation and V-trace.

Arrays are time-major. The value after a terminal state is 0. If a time limit ends an episode, the value of observation
t + 1 replaces the later rewards. A step that only reset the environment is not a transition, and its numbers are 0.
After the last transition of a trajectory, the value of the last observation replaces the later rewards.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from learner_service.batch import Batch

Floats = NDArray[np.float32]


class Targets(NamedTuple):
    """Advantages for the policy and targets for the values, float32[T, N] each."""

    advantages: Floats
    values: Floats


def generalized_advantages(steps: Batch, values: Floats, discount: float, decay: float) -> Targets:
    """GAE(gamma, lambda) and the returns A_t + V(s_t) (Schulman et al. 2016, arXiv 1506.02438, eq. 16).

        delta_t = r_t + gamma V(s_{t+1}) - V(s_t),   A_t = delta_t + gamma lambda A_{t+1}

    values: V of all observations, float32[T + 1, N]. discount: gamma. decay: lambda.
    """
    errors, carry = _errors(steps, values, discount), _carry(steps, discount)
    advantages = _accumulated(errors, carry * np.float32(decay))
    return Targets(advantages, advantages + values[:-1])


def vtrace(
    steps: Batch, values: Floats, weights: Floats, discount: float, decay: float, max_rho: float, max_c: float
) -> Targets:
    """A_t and v_t of V-trace (Espeholt et al. 2018, arXiv 1802.01561); impala.py has the equations.

    values: V of all observations, float32[T + 1, N]. weights: w = pi / mu, float32[T, N]. decay: lambda.
    """
    rho, c = np.minimum(weights, np.float32(max_rho)), np.float32(decay) * np.minimum(weights, np.float32(max_c))
    errors, carry = rho * _errors(steps, values, discount), _carry(steps, discount)
    corrections = _accumulated(errors, carry * c)
    following = np.concatenate((corrections[1:], np.zeros_like(corrections[:1])))
    return Targets(errors + rho * carry * following, corrections + values[:-1])


def importance_weights(learner: Floats, actor: Floats, correct: bool) -> Floats:
    """pi / mu from the logarithms of both, float32 of their shape; 1 unless `correct`."""
    if not correct:
        return np.ones_like(learner)
    # An infinite weight is truncated like every other.
    with np.errstate(over="ignore"):
        weights: Floats = np.exp(learner - actor)
    return weights


def _errors(steps: Batch, values: Floats, discount: float) -> Floats:
    """r_t + gamma V(s_{t+1}) - V(s_t), without the value after a terminal state; 0 for resets."""
    following = np.where(steps.terminated, np.float32(0), values[1:] * np.float32(discount))
    errors: Floats = np.where(steps.valid, steps.rewards + following - values[:-1], np.float32(0))
    return errors


def _carry(steps: Batch, discount: float) -> Floats:
    """gamma if the episode continues within the trajectory, else 0."""
    goes_on: NDArray[np.bool_] = steps.valid & ~steps.terminated & ~steps.truncated
    goes_on[:-1] &= steps.valid[1:]
    goes_on[-1] = False
    return goes_on * np.float32(discount)


def _accumulated(errors: Floats, carry: Floats) -> Floats:
    """x_t = errors_t + carry_t x_{t+1}, float32[T, N]."""
    sums = errors.copy()
    for t in reversed(range(len(sums) - 1)):
        sums[t] += carry[t] * sums[t + 1]
    return sums
