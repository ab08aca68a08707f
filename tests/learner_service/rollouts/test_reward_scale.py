"""Rewards are divided by the deviation of discounted returns, as a vectorized environment's wrapper does it."""

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from learner_service.rollouts.reward_scale import RewardScale

KEY = b"actor"


def steps(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Rewards, valid and ends of two environments; a step after an end only resets."""
    rewards, ends = rng.normal(1.0, 3.0, (count, 2)).astype(np.float32), rng.random((count, 2)) < 0.2
    valid = np.ones((count, 2), np.bool_)
    for step in range(1, count):
        valid[step] = ~ends[step - 1]
        ends[step] &= valid[step]
    rewards[~valid] = 0.0
    return rewards, valid, ends


def returns_one_at_a_time(
    rewards: NDArray[np.float32], valid: NDArray[np.bool_], ends: NDArray[np.bool_], discount: float
) -> list[float]:
    """R_t of each valid step."""
    returns = []
    for environment in range(2):
        value = 0.0
        for step in range(len(rewards)):
            if valid[step, environment]:
                value = discount * value + float(rewards[step, environment])
                returns.append(value)
            if ends[step, environment]:
                value = 0.0
    return returns


def test_the_deviation_is_that_of_all_returns_over_segments_of_any_length() -> None:
    scale, (rewards, valid, ends) = RewardScale(0.9), steps(np.random.default_rng(0), 60)
    for sequence, start in enumerate(range(0, 60, 12)):
        rows = slice(start, start + 12)
        scale.update((KEY, 1), range(sequence, sequence + 1), rewards[rows], valid[rows], ends[rows])
    deviation = np.std(returns_one_at_a_time(rewards, valid, ends, 0.9))
    np.testing.assert_allclose(scale.scaled(rewards), rewards / deviation, rtol=1e-5)


def test_scaled_rewards_are_bounded_and_constant_ones_stay_finite() -> None:
    scale = RewardScale(0.0)
    ones = np.ones((4, 1), np.float32)
    scale.update((KEY, 1), range(1), ones, ones > 0, ones < 0)
    np.testing.assert_array_equal(scale.scaled(np.array([1.0, -1.0, 0.0], np.float32)), [10.0, -10.0, 0.0])


@pytest.mark.parametrize(("source", "sequences"), [((b"other", 1), range(1, 2)), ((KEY, 2), range(1, 2))])
def test_returns_of_another_actor_or_life_begin_at_zero(source: tuple[bytes, int], sequences: range) -> None:
    one, other = np.full((1, 1), 4.0, np.float32), np.full((1, 1), 2.0, np.float32)
    scale = RewardScale(0.5)
    scale.update((KEY, 1), range(1), one, one > 0, one < 0)
    scale.update(source, sequences, other, one > 0, one < 0)
    # The returns are 4 and 2, not 4 and 2 + 0.5 * 4.
    assert scale.scaled(one)[0, 0] == pytest.approx(4.0 / np.std([4.0, 2.0]))


def test_returns_after_a_gap_begin_at_zero() -> None:
    one, other = np.full((1, 1), 4.0, np.float32), np.full((1, 1), 2.0, np.float32)
    scale = RewardScale(0.5)
    scale.update((KEY, 1), range(1), one, one > 0, one < 0)
    scale.update((KEY, 1), range(2, 3), other, one > 0, one < 0)
    assert scale.scaled(one)[0, 0] == pytest.approx(4.0 / np.std([4.0, 2.0]))


def test_a_restored_scale_continues_exactly() -> None:
    rng = np.random.default_rng(1)
    scale, restored = RewardScale(0.99), RewardScale(0.99)
    scale.update((KEY, 1), range(1), *steps(rng, 10))
    restored.load_state(json.loads(json.dumps(scale.state())))
    more = steps(rng, 10)
    for each in (scale, restored):
        each.update((KEY, 1), range(1, 2), *more)
    np.testing.assert_array_equal(restored.scaled(more[0]), scale.scaled(more[0]))


def test_actors_that_come_and_go_use_bounded_memory() -> None:
    scale, ones = RewardScale(0.9), np.ones((1, 4096), np.float32)
    for actor in range(20):
        scale.update((bytes([actor]), 1), range(1), ones, ones > 0, ones < 0)
    going = scale.state()["going"]
    assert [bytes.fromhex(key)[0] for key, *_ in going] == list(range(4, 20))
