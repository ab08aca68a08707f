"""The store keeps segments whole, in order and once, around the ring and over restarts."""

import dataclasses
import errno
import fcntl
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.domain.spaces import ArraySpec
from actorq.errors import ConflictError, ExhaustedError, UserError
from learner_service.replay import ReplayStore
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.directory import HEADER_BYTES, RECORD_BYTES
from learner_service.replay.storage.mapped_files import read_checked, write_checked
from tests.builders.structured import IMAGE, NUMBERS, critics, packed
from tests.learner_service.replay.replay_segments import (
    SPEC,
    assert_holds,
    assert_store_holds,
    kill,
    plain_segment,
    random_segment,
    source,
)


def test_rows_are_ordered_by_environment_with_the_next_observation_in_the_next_row(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000)
    segment = random_segment(np.random.default_rng(0), steps=5, environments=3)
    inserted = store.insert(segment, source(0))
    assert inserted is not None
    assert (inserted.start, inserted.stop, inserted.evicted) == (0, 18, ())
    assert segment.transitions == store.transitions == store.total_transitions
    assert_holds(store, store.segments.live[0], segment)
    for row in np.flatnonzero(store.flags & VALID):
        environment, step = divmod(int(row), 6)
        np.testing.assert_array_equal(store.observations[row + 1], segment.observations[step + 1, environment])


def test_a_segment_that_does_not_fit_before_the_end_goes_to_row_zero_and_evicts_the_oldest(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 23)
    for sequence in range(4):
        store.insert(plain_segment(sequence), source(sequence))
    inserted = store.insert(plain_segment(4), source(4))
    assert inserted is not None
    assert (inserted.start, inserted.stop, inserted.evicted) == (0, 5, ((0, 5),))
    assert [record.source.sequence for record in store.segments.live] == [1, 2, 3, 4]
    assert (store.transitions, store.total_transitions) == (16, 20)
    assert store.segments.extent() == (5, 23)


def test_going_back_to_row_zero_evicts_the_previous_lap_at_the_end(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 20)
    for sequence in range(4):
        store.insert(plain_segment(sequence), source(sequence))
    store.insert(plain_segment(4, steps=7), source(4))
    assert [record.start for record in store.segments.live] == [10, 15, 0]
    inserted = store.insert(plain_segment(5, steps=9), source(5))
    assert inserted is not None
    assert inserted.start == 8
    store.insert(plain_segment(6), source(6))
    assert [record.source.sequence for record in store.segments.live] == [5, 6]
    assert_store_holds(store, {5: plain_segment(5, steps=9), 6: plain_segment(6), 4: plain_segment(4, steps=7)})


def test_a_duplicate_segment_changes_nothing(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(plain_segment(5), source(5))
    before = store.flags.tobytes()
    assert store.insert(plain_segment(5), source(5)) is None
    assert store.insert(plain_segment(4), source(4)) is None
    assert store.flags.tobytes() == before
    assert store.total_transitions == 4
    assert store.insert(plain_segment(0), source(0, incarnation=8)) is not None
    assert store.insert(plain_segment(0), source(0, name="actor-1")) is not None


def test_a_segment_of_more_than_half_the_ring_is_refused(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 20)
    store.insert(plain_segment(0, steps=9), source(0))
    with pytest.raises(ExhaustedError, match=r"20 rows.* 11"):
        store.insert(plain_segment(1, steps=10), source(1))
    assert store.transitions == 9
    assert not store.sequences.contains(source(1))


@settings(max_examples=40, deadline=None)
@given(
    frame_stack=st.integers(1, 3),
    capacity=st.integers(32, 90),
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2), st.booleans()), min_size=1, max_size=40),
)
def test_the_live_segments_are_the_latest_and_intact_over_laps_and_reopenings(
    tmp_path_factory: pytest.TempPathFactory, frame_stack: int, capacity: int, sizes: list[tuple[int, int, bool]]
) -> None:
    directory = tmp_path_factory.mktemp("store")
    spec = dataclasses.replace(SPEC, frame_stack=frame_stack)
    store = ReplayStore.open(directory, spec, capacity)
    segments = {}
    for sequence, (steps, environments, reopen) in enumerate(sizes):
        segments[sequence] = random_segment(
            np.random.default_rng(sequence), steps, environments, sequence, frame_stack=frame_stack
        )
        live = {(record.start, record.stop) for record in store.segments.live}
        inserted = store.insert(segments[sequence], source(sequence))
        assert inserted is not None
        kept = {(record.start, record.stop) for record in store.segments.live}
        assert kept == live - set(inserted.evicted) | {(inserted.start, inserted.stop)}
        if reopen:
            store.close()
            store = ReplayStore.open(directory, spec, capacity)
        numbers = [record.source.sequence for record in store.segments.live]
        assert numbers == list(range(sequence + 1 - len(numbers), sequence + 1))
        assert_store_holds(store, segments)
        assert store.total_transitions == sum(segment.transitions for segment in segments.values())
        first, length = store.segments.extent()
        inside = (np.arange(first, first + length)) % capacity
        assert set(np.flatnonzero(store.flags)) <= set(inside.tolist())
    store.close()


def test_tiny_segments_are_evicted_when_the_directory_is_full(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 200)
    segments = {sequence: plain_segment(sequence, steps=1) for sequence in range(90)}
    for sequence, segment in segments.items():
        store.insert(segment, source(sequence))
    assert len(store.segments.live) == 64
    assert_store_holds(store, segments)


def test_sequence_numbers_outlive_the_records_they_came_from(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 64)
    store.insert(plain_segment(3), source(3, name="early"))
    for sequence in range(300):
        store.insert(plain_segment(sequence), source(sequence, name=f"actor-{sequence % 3}"))
    before = store.sequences.as_dict()
    store.close()
    store = ReplayStore.open(tmp_path, SPEC, 64)
    assert store.sequences.contains(source(3, name="early"))
    assert store.sequences.as_dict() == before
    assert len(before) == 4


def test_a_half_written_record_is_no_segment_and_its_rows_are_cleared(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(plain_segment(0), source(0))
    store.insert(plain_segment(1), source(1))
    store.flush()
    store.insert(plain_segment(2), source(2))
    kill(store)
    with (tmp_path / "directory.bin").open("r+b") as file:
        file.seek(HEADER_BYTES + 2 * RECORD_BYTES + 70)
        file.write(b"\xff\xff")
    store = ReplayStore.open(tmp_path, SPEC, 100)
    assert_store_holds(store, {0: plain_segment(0), 1: plain_segment(1)})
    assert (len(store.segments.live), store.total_transitions, store.segments.damaged) == (2, 8, 0)
    assert not store.sequences.contains(source(2))
    assert store.insert(plain_segment(2), source(2)) is not None


@pytest.mark.parametrize("cleared", [True, False])
def test_an_interrupted_eviction_leaves_no_valid_rows(tmp_path: Path, cleared: bool) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    for sequence in range(2):
        store.insert(plain_segment(sequence), source(sequence))
    rows = store.flags[:5].copy()
    store.segments.drop_oldest(1, keep=1)
    store.flags[:5] = 0 if cleared else rows
    kill(store)
    store = ReplayStore.open(tmp_path, SPEC, 100)
    assert_store_holds(store, {1: plain_segment(1)})
    assert store.sequences.contains(source(0))
    assert store.segments.damaged == 0


def test_counters_outlive_an_eviction_of_everything(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    for sequence in range(2):
        store.insert(plain_segment(sequence), source(sequence))
    store.segments.drop_oldest(8, keep=0)
    store.close()
    store = ReplayStore.open(tmp_path, SPEC, 100)
    assert (store.transitions, store.total_transitions, store.segments.extent()) == (0, 8, (0, 0))
    store.insert(plain_segment(2), source(2))
    assert store.total_transitions == 12


def test_a_store_of_another_environment_or_capacity_is_refused_with_both_values(tmp_path: Path) -> None:
    ReplayStore.open(tmp_path, SPEC, 100).close()
    with pytest.raises(ConflictError, match=r"capacity 100, .*200"):
        ReplayStore.open(tmp_path, SPEC, 200)
    other = dataclasses.replace(SPEC, observations=ArraySpec((3,), "float32"))
    with pytest.raises(ConflictError, match="observations"):
        ReplayStore.open(tmp_path, other, 100)
    ReplayStore.open(tmp_path, SPEC, 100).close()


def test_a_store_of_another_stack_or_an_older_format_is_refused_in_one_line(tmp_path: Path) -> None:
    ReplayStore.open(tmp_path, SPEC, 100).close()
    with pytest.raises(ConflictError, match=r"frame_stack 1, .*4"):
        ReplayStore.open(tmp_path, dataclasses.replace(SPEC, frame_stack=4), 100)
    path = tmp_path / "meta.json"
    write_checked(path, {**read_checked(path), "format_version": 3})
    with pytest.raises(ConflictError, match=r"format_version 3, .*8;"):
        ReplayStore.open(tmp_path, SPEC, 100)


def test_a_store_whose_leaves_only_critics_see_is_refused_where_policies_see_them(tmp_path: Path) -> None:
    seen, hidden = (dataclasses.replace(SPEC, observations=packed(NUMBERS, leaf)) for leaf in (IMAGE, critics(IMAGE)))
    for number, (own, other) in enumerate(((seen, hidden), (hidden, seen))):
        ReplayStore.open(tmp_path / str(number), own, 100).close()
        assert ("critic" in (tmp_path / str(number) / "meta.json").read_text()) is (own is hidden)
        with pytest.raises(ConflictError, match="leaves"):
            ReplayStore.open(tmp_path / str(number), other, 100)
        ReplayStore.open(tmp_path / str(number), own, 100).close()


@pytest.mark.parametrize("frame_stack", [0, 257])
def test_a_frame_stack_out_of_range_is_refused(tmp_path: Path, frame_stack: int) -> None:
    with pytest.raises(UserError, match=f"frame stack.*256, .*{frame_stack}$"):
        ReplayStore.open(tmp_path, dataclasses.replace(SPEC, frame_stack=frame_stack), 100)


def test_a_directory_is_open_once_at_a_time(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    with pytest.raises(ConflictError, match="another learner"):
        ReplayStore.open(tmp_path, SPEC, 100)
    store.close()
    ReplayStore.open(tmp_path, SPEC, 100).close()


def test_a_disk_without_locks_is_not_reported_as_another_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="No locks available"):
        ReplayStore.open(tmp_path, SPEC, 100)


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    ReplayStore.open(tmp_path, SPEC, 100).close()
    (tmp_path / "rewards.bin").unlink()
    with pytest.raises(ConflictError, match=r"rewards\.bin .*missing"):
        ReplayStore.open(tmp_path, SPEC, 100)


def test_an_interrupted_creation_is_started_over(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(plain_segment(0), source(0))
    store.close()
    for path in tmp_path.glob("meta*.json"):
        path.unlink()
    store = ReplayStore.open(tmp_path, SPEC, 100)
    assert (store.transitions, store.total_transitions, store.sequences.contains(source(0))) == (0, 0, False)


def test_capacities_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"4 rows, .*3"):
        ReplayStore.open(tmp_path, SPEC, 3)
    with pytest.raises(UserError, match=f"{2**50} rows"):
        ReplayStore.open(tmp_path, SPEC, 2**50)


def test_the_error_of_a_full_disk_shows_the_free_space_in_readable_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=300_000))
    with pytest.raises(UserError, match=rf"100000 rows .*\d MiB .*{tmp_path}, .*293 KiB"):
        ReplayStore.open(tmp_path, SPEC, 100_000)


def test_a_new_store_uses_address_space_but_little_disk(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1_000_000)
    allocated = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
    # Of the rows, only flags and priorities have disk space at once.
    assert store.nbytes > 30_000_000
    assert allocated < 5_000_000 + 62_500 * RECORD_BYTES + 100_000


@pytest.mark.parametrize(("rows_per_segment", "kept"), [(2, 200), (16, 64), (100, 64)])
def test_short_segments_fill_a_store_that_expects_them(tmp_path: Path, rows_per_segment: int, kept: int) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 400, rows_per_segment=rows_per_segment)
    for sequence in range(300):
        store.insert(plain_segment(sequence, steps=1), source(sequence))
    assert store.transitions == kept
    store.close()
    # The expected size at its creation counts, so that stored segments are found with any later size.
    store = ReplayStore.open(tmp_path, SPEC, 400)
    assert [record.source.sequence for record in store.segments.live] == list(range(300 - kept, 300))


def test_a_store_without_its_number_of_segments_is_refused(tmp_path: Path) -> None:
    ReplayStore.open(tmp_path, SPEC, 100).close()
    write_checked(tmp_path / "meta.json", {**read_checked(tmp_path / "meta.json"), "segments": 0})
    with pytest.raises(ConflictError, match=f"{tmp_path} .* 0 segments"):
        ReplayStore.open(tmp_path, SPEC, 100)
