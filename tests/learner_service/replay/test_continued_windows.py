"""N-step windows continue in the next segment of their environment, and only there."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.domain.trajectory import Segment
from learner_service.replay import (
    DelayedReturns,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    SegmentSource,
    UniformSampler,
    assemble,
)
from learner_service.replay.storage.columns import VALID
from tests.learner_service.replay.replay_segments import SPEC, kill, plain_segment, source

STEPS = 4


def chain(count: int, environments: int = 1) -> list[Segment]:
    """Segments of rewards of 1 that follow each other, from sequence 1 on."""
    segments: list[Segment] = []
    for sequence in range(1, count + 1):
        segment = plain_segment(sequence, STEPS, environments)
        segment.rewards[:] = 1
        if segments:
            segment.observations[0] = segments[-1].observations[-1]
        segments.append(replace(segment, follows=sequence > 1))
    return segments


def opened(directory: Path, capacity: int = 100, checked_at_once: int = 2**30) -> ReplayStore:
    return ReplayStore.open(directory, SPEC, capacity, checked_at_once=checked_at_once)


def insert(store: ReplayStore, segment: Segment, name: str = "actor-0", incarnation: int = 7) -> None:
    store.insert(segment, source(segment.sequence, name, incarnation))


def window_steps(store: ReplayStore, n_step: int = 3) -> NDArray[np.int64]:
    """Steps of the windows of all transitions in order of their rows: their rewards are 1."""
    batch = assemble(store, np.flatnonzero(store.flags & VALID), Returns(n_step, 1.0))
    steps: NDArray[np.int64] = batch.returns.astype(np.int64)
    return steps


def test_a_window_leads_through_several_short_segments(tmp_path: Path) -> None:
    store = opened(tmp_path)
    segments = chain(4)
    for segment in segments:
        insert(store, segment)
    assert window_steps(store, 10).tolist() == [10] * 7 + list(range(9, 0, -1))
    batch = assemble(store, np.array([2]), Returns(10, 1.0))
    np.testing.assert_array_equal(batch.bootstrap_observations[0], segments[2].observations[4, 0])


def test_segments_of_other_actors_in_between_change_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for mine, other in zip(chain(3, environments=2), chain(3, environments=1), strict=True):
        insert(store, mine)
        insert(store, other, "actor-1")
    full, last = [3, 3, 3, 3], [3, 3, 2, 1]
    assert window_steps(store).tolist() == full * 6 + last * 3


def unlike(segment: Segment) -> Segment:
    segment.observations[0] += 1
    return segment


@pytest.mark.parametrize(
    ("changed", "name", "incarnation"),
    [
        (lambda segment: replace(segment, follows=False), "actor-0", 7),
        (lambda segment: replace(segment, sequence=3), "actor-0", 7),
        (lambda segment: replace(plain_segment(2, environments=2), follows=True), "actor-0", 7),
        (unlike, "actor-0", 7),
        (lambda segment: segment, "actor-1", 7),
        (lambda segment: segment, "actor-0", 8),
    ],
    ids=["steps were dropped", "a segment was lost", "other environments", "other state", "actor", "incarnation"],
)
def test_a_window_ends_where_the_next_segment_does_not_follow(
    tmp_path: Path, changed: Callable[[Segment], Segment], name: str, incarnation: int
) -> None:
    store = opened(tmp_path)
    first, second = chain(2)
    insert(store, first)
    insert(store, changed(second), name, incarnation)
    assert window_steps(store)[:STEPS].tolist() == [3, 3, 2, 1]


def test_a_segment_that_ends_with_its_episode_has_no_window_beyond(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first, second = chain(2)
    first.terminated[-1] = True
    second.valid[0] = False
    insert(store, first)
    insert(store, second)
    assert window_steps(store).tolist() == [3, 3, 2, 1, 3, 2, 1]


def test_a_duplicate_changes_no_window(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for segment in chain(3):
        insert(store, segment)
        insert(store, segment)
    assert window_steps(store).tolist() == [3] * 10 + [2, 1]


@pytest.mark.parametrize("end", [ReplayStore.close, kill])
def test_a_reopened_store_has_the_same_windows(tmp_path: Path, end: Callable[[ReplayStore], None]) -> None:
    store = opened(tmp_path, capacity=28)
    segments = chain(8)
    for segment in segments[:7]:
        insert(store, segment)
    before = window_steps(store)
    assert before.max() == 3
    end(store)
    store = opened(tmp_path, capacity=28)
    np.testing.assert_array_equal(window_steps(store), before)
    # The first segment that comes after the restart follows the last one before it.
    insert(store, segments[7])
    assert np.count_nonzero(window_steps(store) < 3) == 2


def test_no_window_reads_a_segment_before_it_is_checked(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for segment in chain(2):
        insert(store, segment)
    store.close()
    store = opened(tmp_path, checked_at_once=0)
    assert window_steps(store).tolist() == [3, 3, 2, 1] * 2
    assert store.segments.check(np.array([5])) == ()
    assert window_steps(store).tolist() == [3] * 6 + [2, 1]


@pytest.mark.parametrize("damaged", [0, 1])
def test_no_window_reads_a_damaged_segment(tmp_path: Path, damaged: int) -> None:
    store = opened(tmp_path, capacity=20)
    segments = chain(6)
    for segment in segments[:2]:
        insert(store, segment)
    store.close()
    path = tmp_path / "actions.bin"
    data = bytearray(path.read_bytes())
    data[damaged * 5 * 8] ^= 1
    path.write_bytes(data)
    store = opened(tmp_path, capacity=20, checked_at_once=0)
    for segment in segments[2:4]:
        insert(store, segment)
    store.segments.check(np.arange(10))
    assert window_steps(store).tolist() == ([3, 3, 2, 1] if damaged else [3] * 4) + [3] * 6 + [2, 1]
    # Other rows replace both.
    for segment in segments[4:]:
        insert(store, segment)
    assert window_steps(store).tolist() == [3] * 6 + [2, 1] + [3] * 8


def test_dropped_segments_end_no_other_window(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for segment in chain(4):
        insert(store, segment)
    store.segments.drop_oldest(2 * STEPS, keep=0)
    assert window_steps(store).tolist() == [3] * 6 + [2, 1]


def test_longer_returns_later_in_the_run_continue_too(tmp_path: Path) -> None:
    store = opened(tmp_path)
    delayed = DelayedReturns(Returns(1, 1.0), Returns(3, 1.0), after=8)
    limiter = RateLimiter(8.0, 4, 64.0, clock=lambda: 0.0)
    buffer = ReplayBuffer(store, UniformSampler(store, np.random.default_rng(0)), limiter, delayed)
    for segment in chain(2):
        assert buffer.limiter.try_reserve(STEPS)
        buffer.insert(segment, SegmentSource.from_name("actor-0", 7, segment.sequence), STEPS)
    batch, sampled = buffer.draw(64)
    expected = np.array([3, 3, 3, 3, -1, 3, 3, 2, 1])
    np.testing.assert_array_equal(batch.returns, expected[sampled.rows])
    assert set(sampled.rows.tolist()) == {0, 1, 2, 3, 5, 6, 7, 8}
