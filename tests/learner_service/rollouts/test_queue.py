"""The queue returns whole segments, oldest first, each once, and drops segments that are too old."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actorq.errors import InvalidInputError
from learner_service.replay import DiskWatch, Returns, assemble
from learner_service.replay.storage.columns import VALID
from tests.learner_service.replay.replay_segments import kill, random_segment, source
from tests.learner_service.rollouts.rollout_parts import (
    drawn_segment,
    insert,
    next_rollout,
    open_queue,
    pieces,
    told,
    used,
)


def test_a_rollout_equals_the_sent_segment(tmp_path: Path) -> None:
    queue, sent = open_queue(tmp_path), drawn_segment(0)
    insert(queue, sent)
    (got,) = next_rollout(queue)
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "valid", "log_probabilities"):
        expected = sent.columns[name]
        if name in ("terminated", "truncated"):
            expected = np.logical_and(expected, sent.valid)
        np.testing.assert_array_equal(getattr(got, name), expected)
        assert getattr(got, name).dtype == sent.columns[name].dtype
    np.testing.assert_array_equal(got.policy_versions, np.ones((4, 2), np.int64))
    assert got.rewards.size == 8


def test_stacks_equal_those_of_the_replay(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, frame_stack=3)
    insert(queue, drawn_segment(3, frame_stack=3, end_rate=0.5))
    (got,) = next_rollout(queue)
    rows = np.flatnonzero(queue._store.flags & VALID)
    batch = assemble(queue._store, rows, Returns(1, 0.9))
    assert got.observations.shape == (5, 2, 3, 2)
    valid = got.valid.T
    np.testing.assert_array_equal(got.observations[:-1].swapaxes(0, 1)[valid], batch.observations)
    np.testing.assert_array_equal(got.observations[1:].swapaxes(0, 1)[valid], batch.bootstrap_observations)


def test_a_rollout_has_at_least_its_size_and_the_rest_waits(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, rollout_size=12, waiting=3)
    segments = [drawn_segment(number) for number in range(4)]
    insert(queue, segments[0])
    assert queue.next_rollout(timeout=0) is None
    insert(queue, *segments[1:])
    assert used(next_rollout(queue)) == told(*segments[:2])
    assert queue.waiting_transitions == sum(segment.transitions for segment in segments[2:])
    assert used(next_rollout(queue)) == told(*segments[2:])
    assert queue.next_rollout(timeout=0) is None
    assert queue.limiter.inserts == 32
    assert queue.limiter.samples == 2 * 32
    assert queue.limiter.samples_per_insert_realised == 2


def test_segments_are_joined_in_time_and_actors_along_the_environments(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, rollout_size=48)
    walks = [replace(drawn_segment(number, steps=12), sequence=0) for number in range(2)]
    for one, other in zip(pieces(walks[0], 4, first=5), pieces(walks[1], 4, first=1), strict=True):
        insert(queue, one, actor="one")
        insert(queue, other, actor="other")
    (got,) = next_rollout(queue)
    assert got.rewards.shape == (12, 4)
    rewards = {tuple(column) for column in got.rewards.T}
    assert rewards == {tuple(column) for walk in walks for column in walk.rewards.T}
    observed = {observations.tobytes() for observations in got.observations.swapaxes(0, 1)}
    assert observed == {
        np.ascontiguousarray(walk.observations[:, environment]).tobytes() for walk in walks for environment in range(2)
    }


def test_a_gap_and_other_observations_end_a_trace(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, rollout_size=32)
    walk = pieces(drawn_segment(0, steps=12), 4, first=1)
    # The second piece is missing. The last ones follow in number, but begin elsewhere.
    insert(queue, walk[0], walk[2], drawn_segment(4), drawn_segment(9))
    assert [part.rewards.shape for part in next_rollout(queue)] == [(4, 8)]


def test_segments_of_other_lengths_are_trajectories_of_their_own(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, rollout_size=16)
    segments = [drawn_segment(0), drawn_segment(1, steps=3), drawn_segment(2, steps=1, environments=3)]
    insert(queue, *segments)
    rollout = next_rollout(queue)
    assert sorted(part.rewards.shape for part in rollout) == [(1, 3), (3, 2), (4, 2)]
    assert used(rollout) == told(*segments)


def test_a_segment_that_is_too_old_is_dropped_and_withdrawn_from_the_limiter(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_lag=2)
    stale, newer, newest = (drawn_segment(number, version=number) for number in (1, 2, 3))
    # A restarted learner leaves numbers out. That is no lag.
    for version in (1, 2, 1026):
        queue.published(version)
    insert(queue, stale)
    queue.published(1027)
    assert queue.next_rollout(timeout=0) is None
    assert queue.dropped_transitions == stale.transitions
    assert (queue.limiter.inserts, queue.limiter.samples, queue.waiting_transitions) == (0, 0, 0)
    insert(queue, newer)
    assert used(next_rollout(queue)) == told(newer)
    insert(queue, newest)
    assert used(next_rollout(queue)) == told(newest)
    assert queue.limiter.samples_per_insert_realised == 2


def test_the_oldest_version_of_a_segment_counts(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_lag=1)
    for version in (1, 2, 3):
        queue.published(version)
    mixed = drawn_segment(0)
    spans = (replace(mixed.spans[0], version=1), replace(mixed.spans[0], first_step=2, version=3))
    insert(queue, replace(mixed, spans=spans))
    assert queue.next_rollout(timeout=0) is None
    assert queue.dropped_transitions == mixed.transitions


def test_rewards_are_clipped(tmp_path: Path) -> None:
    queue, sent = open_queue(tmp_path, clip=0.5), drawn_segment(0)
    insert(queue, sent)
    (got,) = next_rollout(queue)
    np.testing.assert_array_equal(got.rewards, np.clip(sent.rewards, -0.5, 0.5))


def test_a_segment_without_probabilities_is_refused_and_releases_its_reservation(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    silent = random_segment(np.random.default_rng(0), 4, 2)
    assert queue.limiter.try_reserve(8)
    with pytest.raises(InvalidInputError, match="log_probabilities"):
        queue.insert(silent, source(0), 8)
    insert(queue, drawn_segment(0))


def test_a_duplicate_is_handed_out_once(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, waiting=2)
    insert(queue, drawn_segment(0))
    assert queue.limiter.try_reserve(8)
    assert queue.insert(drawn_segment(0), source(0), 8) is None
    next_rollout(queue)
    assert queue.next_rollout(timeout=0) is None


@pytest.mark.parametrize("killed_after", range(7))
def test_each_segment_is_used_once_in_the_surviving_history(tmp_path: Path, killed_after: int) -> None:
    segments = [drawn_segment(number) for number in range(10)]
    queue = open_queue(tmp_path / "run", waiting=4, scale=True)
    insert(queue, *segments[:4])
    history = [used(next_rollout(queue))]
    state = json.loads(json.dumps(queue.state_dict()))
    queue.flush()
    # What the killed learner did after its checkpoint.
    for step in range(killed_after):
        if step % 2:
            insert(queue, segments[4 + step // 2])
        else:
            next_rollout(queue)
    kill(queue._store)
    queue = open_queue(tmp_path / "run", waiting=4, scale=True)
    queue.load_state_dict(state)
    stored = 4 + killed_after // 2
    while (rollout := queue.next_rollout(timeout=0)) is not None:
        history.append(used(rollout))
        if len(history) == stored - 1:
            insert(queue, segments[stored])
    assert history == [told(segment) for segment in segments[: stored + 1]]
    assert queue.limiter.samples == queue.limiter.inserts * 2
    queue.close()


def test_a_restored_queue_returns_the_same_rollouts_as_the_saved_one(tmp_path: Path) -> None:
    queue = open_queue(tmp_path / "run", waiting=4, scale=True)
    walk = pieces(drawn_segment(0, steps=16), 4, first=1)
    queue.published(1)
    insert(queue, *walk)
    next_rollout(queue)
    state = json.loads(json.dumps(queue.state_dict()))
    queue.flush()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    restored = open_queue(tmp_path / "copy", waiting=4, scale=True)
    restored.load_state_dict(state)
    assert restored.versions.state()["versions"] == [1]
    for _ in range(3):
        (expected,), (actual,) = next_rollout(queue), next_rollout(restored)
        np.testing.assert_array_equal(actual.rewards, expected.rewards)
        np.testing.assert_array_equal(actual.observations, expected.observations)
    assert restored.state_dict() == queue.state_dict()


def test_a_restarted_learner_drops_nothing_that_the_killed_one_has_learned_from(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, waiting=8, capacity=2_000, max_lag=2)
    queue.published(1)
    state = json.loads(json.dumps(queue.state_dict()))
    for version in range(1, 9):
        # As in a run: a rollout of each version.
        insert(queue, drawn_segment(version, version=version))
        next_rollout(queue)
        queue.published(version + 1)
    kill(queue._store)
    queue = open_queue(tmp_path, waiting=8, capacity=2_000, max_lag=2)
    queue.load_state_dict(state)
    for number in range(8):
        queue.published(1024 + number)
        assert used(next_rollout(queue)) == told(drawn_segment(number + 1))
    assert queue.dropped_transitions == 0


def test_a_dropped_segment_counts_once_over_a_restart(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, max_lag=1)
    for version in (1, 2, 3):
        queue.published(version)
    insert(queue, stale := drawn_segment(0))
    assert queue.next_rollout(timeout=0) is None
    state = queue.state_dict()
    queue.close()
    queue = open_queue(tmp_path, max_lag=1)
    queue.load_state_dict(state)
    assert queue.next_rollout(timeout=0) is None
    assert queue.dropped_transitions == stale.transitions
    insert(queue, drawn_segment(1, version=3))
    next_rollout(queue)
    state = queue.state_dict()
    queue.close()
    queue = open_queue(tmp_path, max_lag=1)
    queue.load_state_dict(state)
    assert queue.dropped_transitions == stale.transitions


def test_a_damaged_segment_is_skipped_and_withdrawn_from_the_limiter(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, waiting=2)
    segments = [drawn_segment(number) for number in range(2)]
    insert(queue, *segments)
    queue.close()
    column = tmp_path / "log_probabilities.bin"
    content = bytearray(column.read_bytes())
    content[0] ^= 1
    column.write_bytes(content)
    queue = open_queue(tmp_path, waiting=2)
    assert queue.storage(DiskWatch(tmp_path, 0, queue.machine), 0).damaged_segments == 1
    assert used(next_rollout(queue)) == told(segments[1])
    assert queue.next_rollout(timeout=0) is None
    assert queue.limiter.inserts == 8


def test_a_checkpoint_newer_than_the_files_continues_with_new_segments(tmp_path: Path) -> None:
    queue = open_queue(tmp_path / "run")
    insert(queue, drawn_segment(0))
    next_rollout(queue)
    state = queue.state_dict()
    queue.close()
    queue = open_queue(tmp_path / "new")
    queue.load_state_dict(state)
    insert(queue, drawn_segment(1))
    assert used(next_rollout(queue)) == told(drawn_segment(1))


def test_waiting_segments_outlive_many_laps_of_the_ring(tmp_path: Path) -> None:
    # Two rollouts of 8 steps wait, one is in use, and one segment more: 4 * 10 rows.
    queue = open_queue(tmp_path, waiting=2, capacity=45)
    history = []
    for number in range(40):
        insert(queue, drawn_segment(number))
        if number:
            history.append(used(next_rollout(queue)))
    assert history == [told(drawn_segment(number)) for number in range(39)]
    assert queue.dropped_transitions == 0


def test_segments_much_shorter_than_planned_are_counted_when_the_ring_is_too_small_for_them(tmp_path: Path) -> None:
    # Each step uses two rows here: its own and one for the bootstrap.
    queue = open_queue(tmp_path, rollout_size=40, capacity=60)
    segments = [drawn_segment(number, steps=1, environments=1, end_rate=0.0) for number in range(80)]
    taken = 0
    for segment in segments:
        insert(queue, segment)
        taken += queue.next_rollout(timeout=0) is not None
    assert queue.dropped_transitions > 0
    assert queue.waiting_transitions == 80 - queue.dropped_transitions - 40 * taken
    assert queue.waiting_transitions <= 30
