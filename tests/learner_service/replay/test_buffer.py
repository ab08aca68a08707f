"""The buffer joins store, sampler and limiter, for several threads at once."""

import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.trajectory import Segment
from actorq.errors import ExhaustedError, UserError
from learner_service.replay import (
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    Sampled,
    UniformSampler,
    empty_batch,
)
from tests.learner_service.replay.replay_segments import SPEC, STACKED, plain_segment, random_segment, source

_LIMITER = {"offset": 0.0, "samples_per_insert": 8.0, "min_size": 4, "starved_s": 0.0}


def _buffer(directory: Path, capacity: int = 400, n_step: int = 3) -> ReplayBuffer:
    store = ReplayStore.open(directory, SPEC, capacity)
    sampler = PrioritizedSampler(store, np.random.default_rng(5))
    return ReplayBuffer(store, sampler, RateLimiter(8.0, 4, 64.0, clock=lambda: 0.0), Returns(n_step, 0.99))


def _insert(buffer: ReplayBuffer, number: int) -> None:
    segment = plain_segment(number)
    assert buffer.limiter.try_reserve(segment.transitions)
    assert buffer.insert(segment, source(number), segment.transitions) is not None


def test_inserts_and_samples_are_counted_by_the_limiter(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    _insert(buffer, 0)
    assert buffer.limiter.await_sample(24, timeout=0)
    batch, sampled = buffer.draw(24)
    assert batch.returns.shape == sampled.rows.shape == (24,)
    # A drawn batch counts when it is used for an update.
    assert buffer.limiter.samples == 0
    buffer.limiter.sample(24)
    assert buffer.state_dict() == {
        "inserts": 4,
        "samples": 24,
        **_LIMITER,
        "stored": 4,
        "moments": None,
        "sampler": {"max_priority": 1.0},
    }
    buffer.update_priorities(sampled, np.ones(24, np.float32))
    out = empty_batch(SPEC, 16, Returns(1, 0.9))
    assert buffer.draw(16, out)[0] is out


def test_new_transitions_of_a_restored_buffer_get_the_priority_that_they_would_have_got(tmp_path: Path) -> None:
    def draw(buffer: ReplayBuffer) -> Sampled:
        return buffer.draw(8)[1]

    buffer = _buffer(tmp_path / "run")
    _insert(buffer, 0)
    # The largest error so far belongs to a row whose error is small now.
    for error in (9.0, 0.5):
        buffer.update_priorities(draw(buffer), np.full(8, error, np.float32))
    state = json.loads(json.dumps(buffer.state_dict()))
    buffer.flush()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    restored = _buffer(tmp_path / "copy")
    restored.load_state_dict(state)
    for each in (buffer, restored):
        _insert(each, 1)
        each.close()
    stores = [ReplayStore.open(tmp_path / name, SPEC, 400) for name in ("run", "copy")]
    assert stores[0].priorities.max() == pytest.approx(9.0)
    np.testing.assert_array_equal(stores[1].priorities, stores[0].priorities)


def test_a_restored_largest_priority_outlives_the_next_learner(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    buffer.load_state_dict({"inserts": 0, "samples": 0, "sampler": {"max_priority": 9.0}})
    _insert(buffer, 0)
    buffer.close()
    # A priority above the largest one that the store knows of would count as damage.
    assert _buffer(tmp_path).state_dict()["sampler"] == {"max_priority": 9.0}


def test_a_state_without_priorities_is_restored(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    _insert(buffer, 0)
    buffer.load_state_dict({"inserts": 4, "samples": 24, "moments": None})
    assert buffer.limiter.samples == 24
    assert buffer.state_dict()["sampler"] == {"max_priority": 1.0}


def test_the_starved_time_survives_a_restart(tmp_path: Path) -> None:
    def buffer() -> ReplayBuffer:
        store = ReplayStore.open(tmp_path, SPEC, 400)
        limiter = RateLimiter(8.0, 4, 64.0, clock=count(0.0, 3.0).__next__)
        return ReplayBuffer(store, UniformSampler(store, np.random.default_rng(0)), limiter, Returns(3, 0.99))

    first = buffer()
    assert not first.limiter.await_sample(1, timeout=0)
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = buffer()
    second.load_state_dict(state)
    assert second.limiter.starved_seconds == 3.0
    assert not second.limiter.await_sample(1, timeout=0)
    assert second.limiter.starved_seconds == 6.0


def test_the_newest_observations_are_those_of_the_newest_segments(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    assert buffer.newest_observations(8).shape == (0, *SPEC.observations.shape)
    for number in range(3):
        _insert(buffer, number)
    # Four steps each, of which the fifth row is only bootstrapped from.
    newest, before = (plain_segment(number).observations[:4, 0] for number in (2, 1))
    np.testing.assert_array_equal(buffer.newest_observations(3), newest[1:])
    np.testing.assert_array_equal(buffer.newest_observations(6), np.concatenate([newest, before[2:]]))
    assert len(buffer.newest_observations(1000)) == 3 * 4


def test_the_newest_observations_are_stacks_where_the_policy_sees_stacks(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, STACKED, 100)
    sampler = UniformSampler(store, np.random.default_rng(0))
    buffer = ReplayBuffer(store, sampler, RateLimiter(8.0, 4, 64.0, clock=lambda: 0.0), Returns(1, 0.9))
    assert buffer.newest_observations(8).shape == (0, 3, 2)
    segment = random_segment(np.random.default_rng(0), 4, 1, end_rate=0.0, frame_stack=3)
    segment.ages[:] = 1
    assert buffer.limiter.try_reserve(4)
    buffer.insert(segment, source(0), 4)
    frames = segment.observations[:, 0]
    np.testing.assert_array_equal(buffer.newest_observations(4), frames[[[1, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]])


def test_a_duplicate_releases_its_reservation_and_counts_nothing(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    _insert(buffer, 0)
    assert buffer.limiter.try_reserve(4)
    assert buffer.insert(plain_segment(0), source(0), 4) is None
    assert buffer.limiter.inserts == buffer.total_transitions == buffer.transitions == 4
    buffer.limiter.release(0)


def test_skipped_segments_count_as_inserted(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    _insert(buffer, 0)
    buffer.skip(source(5))
    assert list(buffer.sequences.as_dict().values()) == [5]
    assert buffer.limiter.try_reserve(4)
    assert buffer.insert(plain_segment(5), source(5), 4) is None


def test_a_refused_segment_releases_its_reservation(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path, capacity=10)
    assert buffer.limiter.try_reserve(50)
    with pytest.raises(ExhaustedError):
        buffer.insert(plain_segment(0, steps=50), source(0), 50)
    assert buffer.limiter.inserts == 0
    assert buffer.limiter.try_reserve(12)


def test_a_restarted_buffer_has_the_inserts_of_the_store_and_the_samples_of_the_checkpoint(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    _insert(buffer, 0)
    buffer.limiter.sample(10)
    checkpoint = buffer.state_dict()
    _insert(buffer, 1)
    buffer.limiter.sample(10)
    buffer.flush()
    buffer.close()
    buffer.close()
    buffer = _buffer(tmp_path)
    new = {**_LIMITER, "inserts": 8, "stored": 8, "moments": None, "sampler": {"max_priority": 1.0}}
    assert buffer.state_dict() == {**new, "samples": 0}
    buffer.load_state_dict(checkpoint)
    assert buffer.state_dict() == {**new, "samples": 10}
    assert list(buffer.sequences.as_dict().values()) == [1]


def test_a_lost_replay_is_filled_even_if_the_learner_is_killed_meanwhile(tmp_path: Path) -> None:
    checkpoint = {"inserts": 400, "samples": 8 * 396 - 64, "stored": 400}
    ReplayStore.open(tmp_path, SPEC, 400, earlier_transitions=400).close()
    store = ReplayStore.open(tmp_path, SPEC, 400)
    store.insert(plain_segment(0, steps=3), source(0))
    store.close()
    buffer = _buffer(tmp_path)
    buffer.load_state_dict(checkpoint)
    assert not buffer.limiter.can_sample(1)
    assert buffer.limiter.try_reserve(1)
    buffer.insert(plain_segment(1, steps=1), source(1), 1)
    # The learner may be ahead by the error buffer, as after the first filling.
    assert buffer.limiter.can_sample(64)
    assert not buffer.limiter.can_sample(65)


def test_a_replay_that_resets_have_emptied_is_filled_again_before_it_is_sampled(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path, capacity=10)
    _insert(buffer, 0)
    assert buffer.limiter.can_sample(1)
    for number in range(2):
        resets = plain_segment(number)
        resets = resets.with_columns(valid=np.zeros_like(resets.valid))
        assert buffer.limiter.try_reserve(4)
        buffer.insert(resets, source(number, "another"), 4)
    assert buffer.transitions == 0
    assert not buffer.limiter.can_sample(1)
    _insert(buffer, 1)
    assert buffer.limiter.can_sample(1)


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="n_step"):
        _buffer(tmp_path, n_step=0)


def test_actors_and_a_learner_on_threads_count_every_transition(tmp_path: Path) -> None:
    buffer = _buffer(tmp_path)
    actors, segments = 3, 40
    total = actors * sum(_numbered(number).transitions for number in range(segments))
    # Few enough samples for the learner to finish on this data, and enough for all of it to be admitted.
    batches = 8 * total // 16
    with ThreadPoolExecutor(actors + 1) as pool:
        running = [pool.submit(_act, buffer, f"actor-{index}", segments) for index in range(actors)]
        running.append(pool.submit(_learn, buffer, batches))
        for work in running:
            work.result()
    assert buffer.limiter.inserts == buffer.total_transitions == total
    assert buffer.limiter.samples == batches * 16
    assert len(buffer.sequences.as_dict()) == actors


def _numbered(number: int) -> Segment:
    return random_segment(np.random.default_rng(number), 6, 2, number)


def _act(buffer: ReplayBuffer, name: str, segments: int) -> None:
    possible = threading.Event()
    buffer.limiter.on_inserts_possible(possible.set)
    for number in range(segments):
        possible.clear()
        while not buffer.limiter.try_reserve(12):
            possible.wait()
            possible.clear()
        assert buffer.insert(_numbered(number), source(number, name=name), 12) is not None


def _learn(buffer: ReplayBuffer, batches: int) -> None:
    for _ in range(batches):
        assert buffer.limiter.await_sample(16, None)
        batch, sampled = buffer.draw(16)
        buffer.limiter.sample(16)
        assert np.isfinite(batch.returns).all()
        buffer.update_priorities(sampled, np.abs(batch.returns))


def test_a_checkpoint_ahead_of_the_replay_gives_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    buffer = _buffer(tmp_path)
    _insert(buffer, 0)
    buffer.load_state_dict({"inserts": 4, "samples": 2, "stored": 4, "moments": None})
    assert not caplog.records
    buffer.load_state_dict({"inserts": 9, "samples": 2, "stored": 9, "moments": None})
    (line,) = caplog.messages
    assert re.search("checkpoint .* 9 transitions.* 4", line)
    assert (buffer.limiter.inserts, buffer.total_transitions) == (4, 4)
