"""What was flushed is there after a power cut; of the rest, the longest run of whole segments; nothing twice."""

import errno
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.domain.trajectory import Segment
from learner_service.replay import ReplayStore
from learner_service.replay.storage.columns import Columns
from learner_service.replay.storage.mapped_files import PAGE_BYTES, Machine
from tests.learner_service.replay.replay_segments import SPEC, assert_store_holds, kill, plain_segment, source

BEFORE, AFTER = Machine("11111111-before-the-cut"), Machine("22222222-after-the-cut")


class Disk:
    """The content of the disk below a folder: the content at the last `settle`, and later pages at will."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._content: dict[str, bytes] = {}

    def settle(self) -> None:
        """A flush has returned: all is on the disk."""
        self._content = self._read()

    def cut(self, rng: np.random.Generator, share: float) -> None:
        """Keep the new content of each changed page with probability `share`, otherwise restore the old content."""
        for name, now in self._read().items():
            before = self._content.get(name)
            if before is None or len(before) != len(now):
                continue
            pages = bytearray(before)
            for start in range(0, len(now), PAGE_BYTES):
                if rng.random() < share:
                    pages[start : start + PAGE_BYTES] = now[start : start + PAGE_BYTES]
            (self._directory / name).write_bytes(pages)

    def _read(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self._directory.iterdir() if path.name != "lock"}


def numbers(store: ReplayStore) -> list[int]:
    return [record.source.sequence for record in store.segments.live]


def fill(store: ReplayStore, first: int, stop: int) -> dict[int, Segment]:
    segments = {number: plain_segment(number, steps=1 + number % 7) for number in range(first, stop)}
    for number, segment in segments.items():
        assert store.insert(segment, source(number)) is not None
    return segments


@settings(max_examples=30, deadline=None)
@given(
    flushed=st.integers(0, 300), more=st.integers(0, 200), share=st.floats(0, 1), capacity=st.sampled_from([400, 5000])
)
def test_after_a_power_cut_the_flushed_segments_and_a_sequence_after_them_are_kept(
    tmp_path_factory: pytest.TempPathFactory, flushed: int, more: int, share: float, capacity: int
) -> None:
    directory = tmp_path_factory.mktemp("store")
    store = ReplayStore.open(directory, SPEC, capacity, machine=BEFORE)
    disk = Disk(directory)
    segments = fill(store, 0, flushed)
    store.flush()
    disk.settle()
    assert store.durability.durable.index == flushed
    segments |= fill(store, flushed, flushed + more)
    oldest = numbers(store)[0] if segments else 0
    kill(store)
    disk.cut(np.random.default_rng(flushed), share)
    store = ReplayStore.open(directory, SPEC, capacity, machine=AFTER)
    last = max([*store.sequences.as_dict().values()], default=-1)
    assert flushed - 1 <= last < flushed + more
    # All durable segments exist, except those that the store had evicted itself.
    assert [number for number in numbers(store) if number >= oldest] == list(range(oldest, last + 1))
    assert numbers(store) == sorted(set(numbers(store)))
    assert_store_holds(store, segments)
    assert store.total_transitions == sum(segments[number].transitions for number in range(last + 1))
    # Requested segments are stored once, and repeated segments are not stored.
    for number in range(last + 1, flushed + more):
        assert store.insert(segments[number], source(number)) is not None
    for number in range(flushed + more):
        assert store.insert(segments[number], source(number)) is None
    assert_store_holds(store, segments)
    assert store.total_transitions == sum(segment.transitions for segment in segments.values())
    store.close()


def test_in_the_same_boot_everything_is_trusted(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    fill(store, 0, 20)
    kill(store)
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    assert numbers(store) == list(range(20))
    assert store.segments.dropped == 0


def test_dropped_segments_are_logged_once_and_never_return(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    fill(store, 0, 5)
    store.flush()
    fill(store, 5, 12)
    store.rewards[store.segments.live[8].start] = 77.0
    kill(store)
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=AFTER)
    assert numbers(store) == list(range(8))
    assert (store.segments.dropped, store.segments.damaged) == (4, 0)
    (line,) = caplog.messages
    assert re.match("replay: .* 7 segments .*3 .*kept, 4 dropped", line)
    store.insert(plain_segment(8), source(8))
    kill(store)
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=AFTER)
    assert numbers(store) == list(range(9))


def test_a_machine_without_a_boot_identifier_is_not_trusted(tmp_path: Path) -> None:
    unknown = Machine("")
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=unknown)
    fill(store, 0, 3)
    store.rewards[store.segments.live[1].start] = 77.0
    kill(store)
    assert numbers(ReplayStore.open(tmp_path, SPEC, 1000, machine=unknown)) == [0]


def test_the_table_of_sequences_never_has_unflushed_segments(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    fill(store, 0, 1500)
    store.flush()
    saved = (tmp_path / "sequences.json").read_bytes()
    fill(store, 1500, 3000)
    assert (tmp_path / "sequences.json").read_bytes() == saved
    assert store.durability.durable.index == 1500
    kill(store)


def test_no_record_is_overwritten_before_the_table_has_its_sequence(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    store.insert(plain_segment(3), source(3, name="early"))
    for number in range(10_000):
        store.insert(plain_segment(1, steps=1), source(number))
    kill(store)
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    assert store.sequences.contains(source(3, name="early"))
    assert store.sequences.contains(source(9_999))


def test_a_failed_flush_is_repeated_and_makes_nothing_durable_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    fill(store, 0, 3)
    store.flush()
    fill(store, 3, 6)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error"):
                store.flush()
        assert store.durability.durable.index == 3
    store.flush()
    assert store.durability.durable.index == 6
    assert_store_holds(store, {number: plain_segment(number, steps=1 + number % 7) for number in range(6)})


def test_a_mark_during_a_flush_changes_no_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    fill(store, 0, 3)
    touched = []

    def mark_and_sync(columns: Columns) -> None:
        store.durability.mark()
        sync(columns)

    sync = Columns.sync
    monkeypatch.setattr(Columns, "sync", mark_and_sync)
    monkeypatch.setattr(Columns, "touch", lambda columns, *rows: touched.append(rows))
    store.flush()
    assert not touched


def test_a_mark_from_before_a_failed_flush_makes_nothing_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    fill(store, 0, 3)
    before = store.durability.mark()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            store.flush()
    # The kernel treats the pages of the failed flush as written.
    with pytest.raises(OSError, match="flush"):
        store.durability.sync(before)
    assert store.durability.durable.index == 0
    store.flush()
    assert store.durability.durable.index == 3


def refuse(descriptor: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_flush_with_nothing_new_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000, machine=BEFORE)
    fill(store, 0, 3)
    store.flush()
    monkeypatch.setattr(os, "fdatasync", refuse)
    store.flush()


def test_a_folder_that_moves_to_another_machine_is_whole_when_it_was_closed(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path / "a", SPEC, 1000, machine=BEFORE)
    segments = fill(store, 0, 9)
    store.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store = ReplayStore.open(tmp_path / "b", SPEC, 1000, machine=AFTER)
    assert numbers(store) == list(range(9))
    assert_store_holds(store, segments)
    assert store.segments.dropped == 0
