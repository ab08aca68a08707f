"""The replay drops transitions that are far from the policy, as configured, and otherwise grows."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.config.sparsity import DynamicCapacityConfig
from actorq.domain.columns import Array
from actorq.domain.status import DynamicCapacityStatus
from learner_service.replay import (
    DynamicCapacity,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    UniformSampler,
)
from tests.learner_service.replay.replay_greedy import GREEDY, greedy_segment
from tests.learner_service.replay.replay_segments import source


def open_buffer(directory: Path, prioritized: bool = False, frame_stack: int = 1, capacity: int = 2000) -> ReplayBuffer:
    spec = replace(GREEDY, frame_stack=frame_stack)
    store = ReplayStore.open(directory, spec, capacity, further=("greedy_actions",))
    rng = np.random.default_rng(0)
    sampler = PrioritizedSampler(store, rng) if prioritized else UniformSampler(store, rng)
    return ReplayBuffer(store, sampler, RateLimiter(1e-3, 1, 1e6, clock=lambda: 0.0), Returns(1, 0.9))


def insert(buffer: ReplayBuffer, numbers: range, frame_stack: int = 1) -> None:
    """Eight transitions of two environments each."""
    for number in numbers:
        assert buffer.limiter.try_reserve(8)
        buffer.insert(greedy_segment(number, environments=2, frame_stack=frame_stack), source(number), 8)


def zeros(observations: Array) -> Array:
    """A policy that does nothing."""
    return np.zeros((len(observations), 2), np.float32)


def capacity_of(buffer: ReplayBuffer, act: Callable[[Array], Array] = zeros, **changes: Any) -> DynamicCapacity:
    values = {"threshold": 0.2, "min_size": 16, "period_steps": 40, "oldest": 24, "dropped": 0.1, **changes}
    return DynamicCapacity(buffer, DynamicCapacityConfig.model_validate(values), act)


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("oldest", [1, 13, 700, 5000])
def test_the_distance_is_half_the_mean_squared_scaled_difference_over_the_oldest(
    tmp_path: Path, oldest: int, frame_stack: int
) -> None:
    buffer = open_buffer(tmp_path, frame_stack=frame_stack)
    insert(buffer, range(100), frame_stack)

    def act(observations: Array) -> Array:
        newest = observations if frame_stack == 1 else observations[:, -1]
        halved: Array = newest[:, :2].astype(np.float32) / 2
        return halved

    capacity = capacity_of(buffer, act, oldest=oldest, threshold=1e9)
    capacity.check()
    squares = []
    for number in range(100):
        segment = greedy_segment(number, environments=2, frame_stack=frame_stack)
        assert segment.columns["greedy_actions"] is not None
        for environment in range(2):
            for step in range(4):
                seen = segment.observations[frame_stack - 1 + step, environment].astype(float)
                difference = 0.5 * seen[:2] - segment.columns["greedy_actions"][step, environment].astype(float)
                squares.append((difference[0] / 2.0) ** 2 + (difference[1] / 0.5) ** 2)
    expected = np.mean(squares[:oldest]) / 2 / 2
    status = capacity.status()
    assert status.distance == pytest.approx(expected, rel=1e-5)
    assert status == DynamicCapacityStatus(800, status.distance, 0, 0)
    buffer.close()


def test_it_checks_the_distance_after_each_period(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    insert(buffer, range(4))
    capacity = capacity_of(buffer)
    assert not capacity.due
    insert(buffer, range(4, 5))
    assert capacity.due
    capacity.check()
    assert not capacity.due
    insert(buffer, range(5, 9))
    assert not capacity.due
    # Several periods at once give one check.
    insert(buffer, range(9, 30))
    assert capacity.due
    capacity.check()
    assert not capacity.due
    buffer.close()


@pytest.mark.parametrize("prioritized", [True, False])
@settings(max_examples=40, deadline=None)
@given(
    segments=st.integers(1, 60),
    threshold=st.sampled_from([0.01, 1e6]),
    min_size=st.integers(1, 300),
    dropped=st.floats(0.01, 0.99),
)
def test_the_oldest_share_is_dropped_if_the_policy_is_far_and_the_replay_large(
    tmp_path_factory: pytest.TempPathFactory,
    prioritized: bool,
    segments: int,
    threshold: float,
    min_size: int,
    dropped: float,
) -> None:
    buffer = open_buffer(tmp_path_factory.mktemp("replay"), prioritized)
    insert(buffer, range(segments))
    capacity = capacity_of(buffer, threshold=threshold, min_size=min_size, dropped=dropped)
    capacity.check()
    stored, left = 8 * segments, buffer.transitions
    status = capacity.status()
    assert status.transitions == left == stored - status.dropped_transitions
    assert status.drops == int(left < stored)
    assert buffer.total_transitions == stored
    if threshold == 1e6 or stored - 8 < min_size:
        assert left == stored
    else:
        # Whole segments: as many as make up the share, or as few as leave the smallest size.
        assert min_size <= left < stored
        assert left <= stored * (1 - dropped) or left - 8 < min_size
        assert left > stored * (1 - dropped) - 8
    batch, sampled = buffer.draw(64)
    assert np.isfinite(batch.returns).all()
    # Ten rows of each segment, of which the last ones are left.
    assert sampled.rows.min() >= 10 * (segments - left // 8)
    buffer.close()


def test_the_replay_grows_while_the_policy_is_near_and_shrinks_when_it_is_far(tmp_path: Path) -> None:
    near = True

    def act(observations: Array) -> Array:
        _, greedy = buffer.oldest_greedy_actions(len(observations))
        return greedy if near else greedy.astype(np.float32) + 1

    buffer = open_buffer(tmp_path, capacity=500)
    capacity = capacity_of(buffer, act, period_steps=8, min_size=100, dropped=0.1)
    sizes = []
    for number in range(100):
        near = number < 70
        insert(buffer, range(number, number + 1))
        assert capacity.due
        capacity.check()
        sizes.append(buffer.transitions)
    assert sizes[:50] == list(range(8, 408, 8))
    assert sizes[50:70] == [400] * 20
    assert sizes[70:73] == [400 - 40, 368 - 40, 336 - 40]
    assert sizes[-1] == 104
    status = capacity.status()
    assert status.drops == 30
    assert status.distance == pytest.approx(((1 / 2.0) ** 2 + (1 / 0.5) ** 2) / 2 / 2, rel=1e-5)
    buffer.close()


def test_an_empty_replay_has_no_distance(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    capacity = capacity_of(buffer)
    capacity.check()
    assert capacity.status() == DynamicCapacityStatus(0, None, 0, 0)
    buffer.close()


def test_a_resumed_learner_knows_its_last_check_and_its_drops(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    insert(buffer, range(10))
    capacity = capacity_of(buffer)
    insert(buffer, range(10, 16))
    capacity.check()
    status = capacity.status()
    assert (status.drops, status.transitions) == (1, 112)
    insert(buffer, range(16, 19))
    buffer.close()

    # As after a kill: no method was called, and no checkpoint was written.
    buffer = open_buffer(tmp_path)
    again = capacity_of(buffer)
    assert again.status() == replace(status, transitions=112 + 24)
    assert not again.due
    insert(buffer, range(19, 20))
    assert again.due
    buffer.close()
    # What was missed is made up for.
    buffer = open_buffer(tmp_path)
    assert capacity_of(buffer).due
    buffer.close()


def test_a_check_of_lost_transitions_does_not_prevent_the_next_check(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    insert(buffer, range(10))
    capacity_of(buffer).check()
    path = tmp_path / "dynamic_capacity.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "looked_at": 10_000}))
    capacity = capacity_of(buffer)
    assert not capacity.due
    insert(buffer, range(10, 15))
    assert capacity.due
    buffer.close()
