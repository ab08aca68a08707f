"""A damaged segment is found, logged and skipped. The segments after it stay, and no segment is stored twice."""

import re
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.trajectory import Segment
from actorq.errors import ConflictError
from learner_service.replay import (
    ObservationMoments,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    UniformSampler,
)
from learner_service.replay.storage.directory import HEADER_BYTES, RECORD_BYTES
from learner_service.replay.storage.mapped_files import PAGE_BYTES
from tests.learner_service.replay.replay_segments import SPEC, assert_store_holds, kill, plain_segment, source

SEGMENTS = 60
CAPACITY = 1000


def filled(directory: Path, capacity: int = CAPACITY) -> dict[int, Segment]:
    """A store of `SEGMENTS` segments of four steps, five rows each, closed."""
    segments = {number: plain_segment(number) for number in range(SEGMENTS)}
    store = ReplayStore.open(directory, SPEC, capacity)
    for number, segment in segments.items():
        store.insert(segment, source(number))
    store.close()
    return segments


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file over."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def survivors(store: ReplayStore) -> list[int]:
    return [record.source.sequence for record in store.segments.live]


def without(*numbers: int) -> list[int]:
    return [number for number in range(SEGMENTS) if number not in numbers]


def test_a_flipped_bit_in_a_record_loses_only_its_segment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segments = filled(tmp_path)
    flip(tmp_path / "directory.bin", HEADER_BYTES + 20 * RECORD_BYTES + 9)
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert survivors(store) == without(20)
    assert_store_holds(store, segments)
    assert (store.segments.damaged, store.transitions, store.total_transitions) == (1, 4 * 59, 4 * 60)
    (line,) = caplog.messages
    assert re.match("replay: 1 segments .*damaged.* 59 ", line)
    # A later segment of the same actor is stored, so this one is not requested again and not stored twice.
    assert store.insert(segments[20], source(20)) is None
    store.insert(plain_segment(60), source(60))
    store.close()
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert survivors(store) == [*without(20), 60]
    assert (store.segments.damaged, store.total_transitions) == (0, 4 * 61)


def test_the_watermark_reveals_a_lost_newest_record(tmp_path: Path) -> None:
    filled(tmp_path)
    flip(tmp_path / "directory.bin", HEADER_BYTES + 59 * RECORD_BYTES)
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert survivors(store) == without(59)
    assert (store.segments.damaged, store.total_transitions) == (1, 4 * 60)
    # Its sender is unknown, so its actor sends it again, and it is stored.
    assert store.insert(plain_segment(59), source(59)) is not None


@pytest.mark.parametrize("column", ["observations", "actions", "rewards", "flags", "policy_versions", "ages"])
@pytest.mark.parametrize("at_once", [2**30, 0])
def test_a_flipped_bit_in_a_column_is_found_at_the_first_draw_at_the_latest(
    tmp_path: Path, column: str, at_once: int
) -> None:
    segments = filled(tmp_path)
    path = tmp_path / f"{column}.bin"
    flip(path, path.stat().st_size // CAPACITY * 102, bit=1)
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY, checked_at_once=at_once)
    assert len(survivors(store)) == (59 if at_once else 60)
    buffer = buffered(store, prioritized=True, counted=False)
    for _ in range(20):
        rows = buffer.draw(64)[1].rows
        assert not np.isin(rows, np.arange(100, 105)).any()
    assert survivors(store) == without(20)
    assert store.segments.damaged == 1
    assert buffer.transitions == 4 * 59
    assert_store_holds(store, segments)
    buffer.close()
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert survivors(store) == without(20)
    assert store.segments.damaged == 0


def buffered(
    store: ReplayStore,
    prioritized: bool = False,
    min_size: int = 8,
    counted: bool = True,
) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    sampler = PrioritizedSampler(store, rng) if prioritized else UniformSampler(store, rng)
    limiter = RateLimiter(4.0, min_size, 1000.0, lambda: 0.0)
    moments = ObservationMoments(SPEC.observations.shape) if counted else None
    return ReplayBuffer(store, sampler, limiter, Returns(n_step=3, discount=0.9), moments)


def test_bad_bytes_in_the_rewards_neither_end_the_learner_nor_reach_it(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    path = tmp_path / "rewards.bin"
    data = bytearray(path.read_bytes())
    data[400:656] = b"\xff" * 256
    path.write_bytes(data)
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    # 256 bytes are 64 rewards, from row 100 up to row 163.
    assert survivors(store) == without(*range(20, 33))
    assert_store_holds(store, segments)
    assert np.isfinite(buffered(store).draw(256)[0].returns).all()


@pytest.mark.parametrize("at_once", [2**30, 0])
def test_other_readers_skip_damaged_segments_too(tmp_path: Path, at_once: int) -> None:
    segments = filled(tmp_path)
    for number in (0, 30, 59):
        flip(tmp_path / "observations.bin", 8 * (5 * number + 1), bit=6)
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY, checked_at_once=at_once)
    buffer = buffered(store)
    expected = np.concatenate([segments[number].observations[:-1, 0] for number in without(0, 30, 59)])
    np.testing.assert_array_equal(buffer.newest_observations(8)[-4:], segments[57].observations[:-1, 0])
    moments = buffer.observation_moments()
    assert moments is not None
    np.testing.assert_allclose(moments[0], expected.mean(axis=0), rtol=1e-5)
    assert store.segments.damaged == 3


def test_a_replay_without_one_whole_segment_waits_for_new_ones(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / "observations.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    buffer = buffered(store, min_size=8)
    assert (buffer.transitions, buffer.total_transitions) == (0, 240)
    assert not buffer.limiter.can_sample(1)
    assert buffer.limiter.try_reserve(8)
    for number in (60, 61):
        assert buffer.insert(plain_segment(number), source(number), 4) is not None
    assert buffer.limiter.can_sample(1)
    assert set(buffer.draw(16)[1].rows) <= set(range(10))


def test_after_damage_only_checked_segments_count_until_enough_are_collected(tmp_path: Path) -> None:
    filled(tmp_path)
    flip(tmp_path / "directory.bin", HEADER_BYTES + 20 * RECORD_BYTES + 9)
    # No segment is checked at the start, so that all others may be damaged, too.
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY, checked_at_once=0)
    buffer = buffered(store, min_size=8, counted=False)
    assert (store.segments.damaged, store.segments.dropped, store.segments.checked_transitions) == (1, 0, 0)
    for number in (60, 61):
        assert not buffer.limiter.can_sample(1)
        assert buffer.limiter.try_reserve(4)
        buffer.insert(plain_segment(number), source(number), 4)
    assert buffer.limiter.can_sample(1)


@pytest.mark.parametrize("page", [0, 1])
def test_a_page_of_the_header_has_a_copy(tmp_path: Path, page: int) -> None:
    segments = filled(tmp_path, capacity=100)
    data = bytearray((tmp_path / "directory.bin").read_bytes())
    data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = b"\xa5" * PAGE_BYTES
    (tmp_path / "directory.bin").write_bytes(data)
    store = ReplayStore.open(tmp_path, SPEC, 100)
    assert survivors(store) == list(range(40, 60))
    assert_store_holds(store, segments)
    assert (store.total_transitions, store.segments.damaged) == (240, 0)


def test_without_a_header_the_rows_decide_the_live_segments(tmp_path: Path) -> None:
    segments = filled(tmp_path, capacity=100)
    data = bytearray((tmp_path / "directory.bin").read_bytes())
    data[: 2 * PAGE_BYTES] = bytes(2 * PAGE_BYTES)
    (tmp_path / "directory.bin").write_bytes(data)
    store = ReplayStore.open(tmp_path, SPEC, 100)
    assert survivors(store) == list(range(40, 60))
    assert_store_holds(store, segments)
    assert (store.total_transitions, store.segments.damaged) == (240, 0)


def test_a_damaged_description_is_read_from_its_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segments = filled(tmp_path)
    for _ in range(2):
        flip(tmp_path / "meta.json", 40)
        store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
        assert_store_holds(store, segments)
        store.close()
    assert len(caplog.records) == 2
    flip(tmp_path / "meta.json", 40)
    flip(tmp_path / "meta.copy.json", 41)
    with pytest.raises(ConflictError, match=r"meta\.json .*meta\.copy\.json .*damaged"):
        ReplayStore.open(tmp_path, SPEC, CAPACITY)


@pytest.mark.parametrize("missing", ["meta.json", "meta.copy.json"])
def test_a_lost_description_is_restored_from_its_copy(tmp_path: Path, missing: str) -> None:
    segments = filled(tmp_path)
    (tmp_path / missing).unlink()
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert_store_holds(store, segments)
    store.close()
    assert (tmp_path / "meta.json").read_bytes() == (tmp_path / "meta.copy.json").read_bytes()


@pytest.mark.parametrize(("size", "whole"), [(0, 0), (4 * 152, 30), (4 * CAPACITY + 9, 60)])
def test_a_column_of_another_size_keeps_the_segments_that_are_whole(
    tmp_path: Path, size: int, whole: int, caplog: pytest.LogCaptureFixture
) -> None:
    segments = filled(tmp_path)
    path = tmp_path / "rewards.bin"
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\1"))
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert survivors(store) == list(range(whole))
    assert_store_holds(store, segments)
    assert re.search(rf"rewards\.bin .*{4 * CAPACITY} bytes, .*{size}", caplog.text)
    store.close()
    assert path.stat().st_size == 4 * CAPACITY


def test_a_truncated_log_keeps_the_segments_before_the_cut(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    path = tmp_path / "directory.bin"
    path.write_bytes(path.read_bytes()[: HEADER_BYTES + 20 * RECORD_BYTES + 5])
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert survivors(store) == list(range(20))
    assert_store_holds(store, segments)
    assert (store.segments.damaged, store.total_transitions) == (40, 240)
    store.insert(plain_segment(60), source(60))
    store.close()
    assert survivors(ReplayStore.open(tmp_path, SPEC, CAPACITY)) == [*range(20), 60]


def test_an_unset_priority_counts_as_none(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    sampler = PrioritizedSampler(store, np.random.default_rng(0))
    for number in range(4):
        inserted = store.insert(plain_segment(number), source(number))
        assert inserted is not None
        sampler.on_insert(inserted)
    sampled = sampler.sample(64)
    sampler.update(sampled, np.full(64, 3.0, np.float32))
    store.close()
    flip(tmp_path / "priorities.bin", 4 * 6 + 3, bit=5)
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY)
    assert store.priorities[6] > 1e6
    sampler = PrioritizedSampler(store, np.random.default_rng(0))
    assert store.priorities.max() == pytest.approx(3.0)
    assert sampler.state()["max_priority"] == pytest.approx(3.0)


def test_every_flipped_bit_of_the_log_is_harmless_or_reported(tmp_path: Path) -> None:
    """A bit in each byte of two records and of the used header: at most one segment is missing."""
    segments = filled(tmp_path, capacity=400)
    path = tmp_path / "directory.bin"
    original = path.read_bytes()
    places = [*range(40), *range(512, 580), *range(HEADER_BYTES + 5 * RECORD_BYTES, HEADER_BYTES + 6 * RECORD_BYTES)]
    for place in places:
        flip(path, place, bit=place % 8)
        store = ReplayStore.open(tmp_path, SPEC, 400)
        missing = SEGMENTS - len(survivors(store))
        assert missing == store.segments.damaged <= 1
        assert_store_holds(store, segments)
        assert store.total_transitions == 240
        kill(store)
        path.write_bytes(original)
