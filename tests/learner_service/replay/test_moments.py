"""Observations are counted once for each stored transition, over all restarts of the learner."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorq.domain.leaves import CRITIC_VECTOR, Leaf, views
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Segment
from learner_service.replay import (
    ObservationMoments,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    UniformSampler,
)
from tests.builders.structured import IMAGE, NUMBERS, critics, packed, random_observations
from tests.learner_service.replay.replay_segments import SPEC, plain_segment, random_segment, source

ENDING = [random_segment(np.random.default_rng(number), 5, 2, number, end_rate=0.4) for number in range(6)]


def open_buffer(
    directory: Path, spec: EnvironmentSpec = SPEC, capacity: int = 400, store: ReplayStore | None = None
) -> ReplayBuffer:
    store = store or ReplayStore.open(directory, spec, capacity)
    limiter = RateLimiter(8.0, 4, 1e6, clock=lambda: 0.0)
    sampler = UniformSampler(store, np.random.default_rng(0))
    return ReplayBuffer(store, sampler, limiter, Returns(1, 0.9), ObservationMoments(spec.observations.shape))


def insert(buffer: ReplayBuffer, number: int, segment: Segment | None = None) -> None:
    segment = segment or ENDING[number]
    assert buffer.limiter.try_reserve(segment.transitions)
    buffer.insert(segment, source(number), segment.transitions)


def count(buffer: ReplayBuffer) -> int:
    number: int = buffer.state_dict()["moments"]["count"]
    return number


def acted_on(*segments: Segment) -> np.ndarray[Any, Any]:
    """Every observation that an action followed."""
    return np.concatenate([segment.observations[: segment.steps][segment.valid] for segment in segments])


def assert_moments_of(buffer: ReplayBuffer, *segments: Segment) -> None:
    moments = buffer.observation_moments()
    assert moments is not None
    mean, std = moments
    assert count(buffer) == sum(segment.transitions for segment in segments)
    np.testing.assert_allclose(mean, acted_on(*segments).mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(std, acted_on(*segments).std(axis=0, dtype=np.float64), rtol=1e-12)


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    offset=st.sampled_from([0.0, 1e6, -3e7]),
    seed=st.integers(0, 2**32 - 1),
)
def test_batches_of_any_size_have_the_moments_of_all_together(sizes: list[int], offset: float, seed: int) -> None:
    rng, moments = np.random.default_rng(seed), ObservationMoments((2, 3))
    batches = [rng.normal(offset, 1.0, (size, 2, 3)) for size in sizes]
    for batch in batches:
        moments.add(batch, through=0)
    together = np.concatenate(batches)
    assert moments.count == len(together)
    np.testing.assert_allclose(moments.mean, together.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.std, together.std(axis=0), rtol=1e-6, atol=1e-8)


def test_the_moments_of_several_leaves_are_those_of_all_their_numbers(tmp_path: Path) -> None:
    hidden = Leaf(CRITIC_VECTOR, "numbers", (2,), "float32", critic=True)
    spec = replace(SPEC, observations=packed(NUMBERS, hidden, critics(IMAGE)))
    store = ReplayStore.open(tmp_path, spec, 400)
    limiter, sampler = RateLimiter(8.0, 4, 1e6, clock=lambda: 0.0), UniformSampler(store, np.random.default_rng(0))
    buffer = ReplayBuffer(store, sampler, limiter, Returns(1, 0.9), ObservationMoments((5,)))
    seen = random_observations(np.random.default_rng(0), spec, *ENDING[0].observations.shape[:2])
    segment = ENDING[0].with_columns(observations=seen)
    insert(buffer, 0, segment)
    leaves = views(spec.leaves, acted_on(segment))
    numbers = np.concatenate((leaves["vector"], leaves[CRITIC_VECTOR]), axis=1)
    moments = buffer.observation_moments()
    assert moments is not None
    np.testing.assert_allclose(moments[0], numbers.mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(moments[1], numbers.std(axis=0, dtype=np.float64))


def test_before_the_first_transition_there_are_no_moments(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    assert buffer.observation_moments() is None
    insert(buffer, 0)
    assert buffer.observation_moments() is not None


def test_each_transition_is_counted_and_neither_resets_nor_duplicates(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    assert any(not segment.valid.all() for segment in ENDING)
    for number in (0, 1, 1, 2, 0, 3):
        insert(buffer, number)
    assert_moments_of(buffer, *ENDING[:4])
    assert count(buffer) == buffer.total_transitions


def test_stacked_frames_are_counted_once(tmp_path: Path) -> None:
    spec = replace(SPEC, observations=ArraySpec((2, 2), "uint8"), frame_stack=3)
    buffer = open_buffer(tmp_path, spec)
    frames = np.random.default_rng(0).integers(256, size=(7, 1, 2, 2), dtype=np.uint8)
    insert(buffer, 0, plain_segment(0).with_columns(observations=frames))
    moments = buffer.observation_moments()
    assert moments is not None
    np.testing.assert_allclose(moments[0], frames[2:6, 0].mean(axis=0))
    np.testing.assert_allclose(moments[1], frames[2:6, 0].std(axis=0))


def test_evicted_transitions_have_been_counted(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path, capacity=30)
    for number in range(6):
        insert(buffer, number)
    assert buffer.transitions < buffer.total_transitions
    assert_moments_of(buffer, *ENDING)


def reopened(buffer: ReplayBuffer, directory: Path, state: dict[str, Any] | None, capacity: int = 400) -> ReplayBuffer:
    """As after a restart from a checkpoint, which is JSON."""
    buffer.close()
    again = open_buffer(directory, capacity=capacity)
    if state is not None:
        again.load_state_dict(json.loads(json.dumps(state)))
    return again


def test_after_a_crash_uncounted_observations_are_counted_from_the_store(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    for number in (0, 1):
        insert(buffer, number)
    state = buffer.state_dict()
    for number in (2, 3):
        insert(buffer, number)
    buffer = reopened(buffer, tmp_path, state)
    assert_moments_of(buffer, *ENDING[:4])
    insert(buffer, 4)
    assert_moments_of(buffer, *ENDING[:5])


def test_a_current_checkpoint_is_restored_bit_for_bit(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    for number in range(3):
        insert(buffer, number)
    state = buffer.state_dict()
    assert reopened(buffer, tmp_path, state).state_dict() == state


def test_a_restart_reads_no_segment_that_the_checkpoint_has_counted(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path)
    for number in range(3):
        insert(buffer, number)
    state = buffer.state_dict()
    insert(buffer, 3)
    buffer.close()
    # No segment is checked at the start, but each one that is read.
    store = ReplayStore.open(tmp_path, SPEC, 400, checked_at_once=0)
    restarted = open_buffer(tmp_path, store=store)
    assert store.segments.checked_transitions == 0
    restarted.load_state_dict(state)
    assert_moments_of(restarted, *ENDING[:4])
    assert store.segments.checked_transitions == ENDING[3].transitions


@pytest.mark.parametrize("state", [None, {"inserts": 0, "samples": 0, "moments": None}], ids=["none", "without them"])
def test_without_moments_in_a_checkpoint_all_stored_observations_are_counted(
    tmp_path: Path, state: dict[str, Any] | None
) -> None:
    buffer = open_buffer(tmp_path)
    for number in range(3):
        insert(buffer, number)
    assert_moments_of(reopened(buffer, tmp_path, state), *ENDING[:3])


def test_observations_evicted_before_a_crash_are_not_counted_and_none_twice(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path, capacity=30)
    insert(buffer, 0)
    state = buffer.state_dict()
    for number in range(1, 5):
        insert(buffer, number)
    buffer = reopened(buffer, tmp_path, state, capacity=30)
    # Twelve rows each: the ring holds two of them.
    assert_moments_of(buffer, ENDING[0], *ENDING[3:5])


def test_a_checkpoint_ahead_of_its_store_does_not_hide_new_observations(tmp_path: Path) -> None:
    buffer = open_buffer(tmp_path / "ahead")
    for number in range(3):
        insert(buffer, number)
    state = buffer.state_dict()
    behind = open_buffer(tmp_path / "behind")
    insert(behind, 0)
    behind.load_state_dict(state)
    before = count(behind)
    insert(behind, 4)
    assert count(behind) == before + ENDING[4].transitions


def test_moments_of_other_observations_are_refused(tmp_path: Path) -> None:
    state = ObservationMoments((3,)).state()
    with pytest.raises(ValueError, match="reshape"):
        ObservationMoments((2,)).load_state(state, stored=0)
