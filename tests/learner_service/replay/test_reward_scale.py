"""Rewards are divided by the deviation of discounted returns, as a vectorized environment's wrapper does it."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.domain.trajectory import Segment
from learner_service.replay import RateLimiter, ReplayBuffer, ReplayStore, Returns, UniformSampler
from learner_service.replay.reward_scale import RewardScale
from tests.learner_service.replay.replay_segments import SPEC, random_segment, source

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


def test_the_divisor_is_the_deviation_or_more_so_that_no_return_exceeds_the_bound() -> None:
    rewards, ends = np.array([[1.0], [3.0], [-2.0]], np.float32), np.array([[False], [True], [False]])
    wide, narrow = RewardScale(0.5, bound=100.0), RewardScale(0.5, bound=0.5)
    for scale in (wide, narrow):
        scale.update((KEY, 1), range(1), rewards, np.ones((3, 1), np.bool_), ends, through=3)
        assert scale.through == 3
    # Returns 1, 3.5 and, in the next episode, -2.
    assert wide.divisor == pytest.approx(np.std([1.0, 3.5, -2.0]))
    assert narrow.divisor == pytest.approx(7.0)
    restored = RewardScale(0.5, bound=0.5)
    restored.load_state(json.loads(json.dumps(narrow.state())), stored=3)
    assert (restored.divisor, restored.through) == (narrow.divisor, 3)


def opened(directory: Path, scale: RewardScale | None) -> ReplayBuffer:
    store = ReplayStore.open(directory, SPEC, 400)
    sampler = UniformSampler(store, np.random.default_rng(5))
    limiter = RateLimiter(8.0, 4, 1e6, clock=lambda: 0.0)
    return ReplayBuffer(store, sampler, limiter, Returns(1, 0.9, clip_rewards=2.0), reward_scale=scale)


def insert(buffer: ReplayBuffer, segment: Segment) -> None:
    assert buffer.limiter.try_reserve(segment.transitions)
    assert buffer.insert(segment, source(segment.sequence), segment.transitions) is not None


def expected_divisor(segments: list[Segment], bound: float) -> float:
    """Of consecutive segments of one actor with two environments and rewards clipped to [-2, 2]."""
    rewards, valid, terminated, truncated = (
        np.concatenate([segment.columns[name] for segment in segments])
        for name in ("rewards", "valid", "terminated", "truncated")
    )
    # A reset also begins an episode, because each of these segments begins on its own.
    returns = returns_one_at_a_time(np.clip(rewards, -2, 2), valid, terminated | truncated | ~valid, 0.9)
    return max(float(np.std(returns)), float(np.abs(returns).max()) / bound)


@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_a_replay_divides_drawn_returns_and_counts_each_reward_once_over_restarts(tmp_path: Path, bound: float) -> None:
    rng = np.random.default_rng(0)
    segments = [random_segment(rng, 6, 2, sequence) for sequence in range(6)]
    buffer = opened(tmp_path, RewardScale(0.9, bound))
    for segment in segments[:3]:
        insert(buffer, segment)
    state = json.loads(json.dumps(buffer.state_dict()))
    # The checkpoint does not have this segment, the store does.
    insert(buffer, segments[3])
    buffer.close()
    scale = RewardScale(0.9, bound)
    buffer = opened(tmp_path, scale)
    buffer.load_state_dict(state)
    for segment in segments[4:]:
        insert(buffer, segment)
    scaled, sampled = buffer.draw(64)
    assert scale.divisor == pytest.approx(expected_divisor(segments, bound))
    plain = np.clip(buffer._store.rewards[sampled.rows], -2, 2)
    np.testing.assert_allclose(scaled.returns, plain / scale.divisor, rtol=1e-5)
    buffer.close()


def test_a_new_run_begins_with_the_scale_of_another(tmp_path: Path) -> None:
    segments = [random_segment(np.random.default_rng(0), 6, 2, sequence) for sequence in range(3)]
    first, scale = opened(tmp_path / "first", RewardScale(0.9, 5.0)), RewardScale(0.9, 5.0)
    for segment in segments:
        insert(first, segment)
    begun = opened(tmp_path / "begun", scale)
    begun.begin_from(json.loads(json.dumps(first.state_dict())))
    assert scale.divisor == pytest.approx(expected_divisor(segments, 5.0))
    assert scale.through == 0
    first.close()
    begun.close()
