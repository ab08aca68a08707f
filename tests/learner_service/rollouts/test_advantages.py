"""Advantages and targets against numbers worked out by hand, and against sums written out."""

import numpy as np
import pytest
from numpy.typing import NDArray

from learner_service.batch import Batch
from learner_service.rollouts.advantages import generalized_advantages, vtrace
from tests.learner_service.algorithms.algorithm_parts import DISCRETE
from tests.learner_service.algorithms.on_policy_parts import random_trajectories

Floats = NDArray[np.float32]


def steps_of(rewards: list[float], terminated: list[int], truncated: list[int], valid: list[int]) -> Batch:
    """One environment."""
    size = len(rewards)

    def flags(values: list[int]) -> NDArray[np.bool_]:
        return np.array(values, np.bool_)[:, None]

    return Batch(
        observations=np.zeros((size + 1, 1, 3), np.float32),
        actions=np.zeros((size, 1), np.int64),
        rewards=np.array(rewards, np.float32)[:, None],
        terminated=flags(terminated),
        truncated=flags(truncated),
        valid=flags(valid),
        log_probabilities=np.zeros((size, 1), np.float32),
        policy_versions=np.ones((size, 1), np.int64),
        senders=np.zeros((size, 1), np.uint64),
    )


def test_gae_of_a_terminal_state_a_time_limit_a_reset_and_the_end_by_hand() -> None:
    """gamma = 1/2, lambda = 1/2, so errors decay by 1/4.

    Steps 0 and 3 continue; step 1 reaches a terminal state; a time limit ends step 4; steps 2 and 5 reset; 6 is the
    last step of the segment.
    """
    steps = steps_of(
        rewards=[1, 2, 9, 4, 8, 9, 1],
        terminated=[0, 1, 0, 0, 0, 0, 0],
        truncated=[0, 0, 0, 0, 1, 0, 0],
        valid=[1, 1, 0, 1, 1, 0, 1],
    )
    values = np.array([2, 4, 64, 8, 16, 32, 6, 10], np.float32)[:, None]
    # The value after step 4 is that of observation 5, the last one before the reset.
    expected = [1 + 2 - 2 + (2 - 4) / 4, 2 - 4, 0, 4 + 8 - 8 + (8 + 16 - 16) / 4, 8 + 16 - 16, 0, 1 + 5 - 6]
    advantages, returns = generalized_advantages(steps, values, 0.5, 0.5)
    assert advantages[:, 0].tolist() == expected
    valid = steps.valid[:, 0]
    assert (returns - values[:-1])[valid, 0].tolist() == np.array(expected)[valid].tolist()
    assert advantages.dtype == returns.dtype == np.float32


def test_a_chain_without_a_flag_breaks_at_a_reset() -> None:
    """The state before a reset has no known end: it continues with its own value."""
    steps = steps_of([1, 5, 7], [0, 0, 0], [0, 0, 0], [1, 0, 1])
    values = np.array([[2], [4], [6], [8]], np.float32)
    assert generalized_advantages(steps, values, 0.5, 1.0).advantages[:, 0].tolist() == [1.0, 0.0, 5.0]


def test_lambda_one_gives_discounted_returns_and_lambda_zero_errors_of_one_step() -> None:
    steps = random_trajectories(np.random.default_rng(0), DISCRETE)
    values = np.random.default_rng(1).standard_normal((17, 8)).astype(np.float32)
    returns = generalized_advantages(steps, values, 0.9, 1.0).values
    errors = generalized_advantages(steps, values, 0.9, 0.0).advantages
    for t, n in np.argwhere(steps.valid):
        total, discount, now = 0.0, 1.0, t
        while True:
            total += discount * steps.rewards[now, n]
            discount *= 0.9
            if steps.terminated[now, n]:
                break
            if steps.truncated[now, n] or now == 15 or not steps.valid[now + 1, n]:
                total += discount * values[now + 1, n]
                break
            now += 1
        assert returns[t, n] == pytest.approx(total, abs=1e-5)
        following = 0.0 if steps.terminated[t, n] else 0.9 * values[t + 1, n]
        assert errors[t, n] == pytest.approx(steps.rewards[t, n] + following - values[t, n], abs=1e-6)


def written_out(
    steps: Batch, values: Floats, weights: Floats, decay: float, max_rho: float, max_c: float
) -> NDArray[np.float64]:
    """v_s = V(s) + sum_t gamma^(t - s) (prod_{s <= i < t} c_i) delta_t V (arXiv 1802.01561, eq. 1), each sum by itself.

    The sum ends with the episode.
    """
    length, environments = steps.rewards.shape
    rho, c = np.minimum(max_rho, weights.astype(float)), decay * np.minimum(max_c, weights.astype(float))
    result = values[:-1].astype(float)
    for s in range(length):
        for n in range(environments):
            if not steps.valid[s, n]:
                continue
            for t in range(s, length):
                following = 0.0 if steps.terminated[t, n] else 0.9 * float(values[t + 1, n])
                error = rho[t, n] * (float(steps.rewards[t, n]) + following - float(values[t, n]))
                result[s, n] += 0.9 ** (t - s) * np.prod(c[s:t, n]) * error
                ends = steps.terminated[t, n] or steps.truncated[t, n]
                if ends or (t + 1 < length and not steps.valid[t + 1, n]):
                    break
    return result


@pytest.mark.parametrize(
    ("decay", "max_rho", "max_c"), [(1.0, 1.0, 1.0), (0.9, 2.0, 0.7), (1.0, 1e9, 1e9)], ids=["usual", "own", "no bound"]
)
def test_vtrace_is_equation_1_written_out(decay: float, max_rho: float, max_c: float) -> None:
    steps = random_trajectories(np.random.default_rng(0), DISCRETE)
    rng = np.random.default_rng(1)
    values = rng.standard_normal((17, 8)).astype(np.float32)
    weights = np.exp(0.5 * rng.standard_normal((16, 8))).astype(np.float32)
    advantages, targets = vtrace(steps, values, weights, 0.9, decay, max_rho, max_c)
    expected = written_out(steps, values, weights, decay, max_rho, max_c)
    np.testing.assert_allclose(targets[steps.valid], expected[steps.valid], rtol=1e-4, atol=1e-4)
    # Sec. 4.2: rho_s (r_s + gamma v_{s+1} - V(s_s)).
    for t, n in np.argwhere(steps.valid):
        goes_on = t < 15 and not steps.truncated[t, n] and steps.valid[t + 1, n]
        following = expected[t + 1, n] if goes_on else values[t + 1, n]
        following = 0.0 if steps.terminated[t, n] else 0.9 * following
        advantage = min(max_rho, weights[t, n]) * (steps.rewards[t, n] + following - values[t, n])
        assert advantages[t, n] == pytest.approx(advantage, abs=1e-3)
    assert not advantages[~steps.valid].any()


def test_on_policy_vtrace_targets_are_those_of_the_n_step_bellman_equation() -> None:
    """Remark 1: with weights of 1 and lambda 1, v_s is the discounted return to the end, and then the value there."""
    steps = random_trajectories(np.random.default_rng(0), DISCRETE)
    values = np.random.default_rng(1).standard_normal((17, 8)).astype(np.float32)
    targets = vtrace(steps, values, np.ones((16, 8), np.float32), 0.9, 1.0, 1.0, 1.0).values
    expected = generalized_advantages(steps, values, 0.9, 1.0).values
    np.testing.assert_allclose(targets[steps.valid], expected[steps.valid], rtol=1e-5, atol=1e-5)
