"""A full disk only stops inserts, and they continue when there is room."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.spaces import ArraySpec
from actorq.domain.trajectory import Segment
from actorq.errors import UnavailableError, UserError
from learner_service.replay import DiskWatch, Flusher, ReplayBuffer, ReplayStore
from learner_service.replay.storage.mapped_files import Machine, MappedFile
from tests.learner_service.learner_parts import open_replay, segment
from tests.learner_service.replay.replay_segments import SPEC, assert_store_holds, kill, plain_segment, source

# 2 MB of rows are allocated at once: a row has 4 kB.
LARGE = replace(SPEC, observations=ArraySpec((1024,), "float32"))


class SmallDisk:
    """Hands out `left` bytes."""

    def __init__(self, left: int) -> None:
        self.left = left

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        if length > self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= length

    def machine(self) -> Machine:
        return Machine("boot", self.allocate, lambda folder: self.left)


def large_segment(number: int) -> Segment:
    plain = plain_segment(number, steps=9)
    observations = np.zeros((10, 1, 1024), np.float32)
    return plain.with_columns(observations=observations)


def insert_until_full(store: ReplayStore) -> None:
    for number in range(10_000):
        store.insert(large_segment(number), source(number))


def test_a_full_disk_refuses_inserts_until_there_is_room_and_changes_nothing(tmp_path: Path) -> None:
    disk = SmallDisk(3_000_000)
    store = ReplayStore.open(tmp_path, LARGE, 10_000, machine=disk.machine())
    with pytest.raises(UnavailableError, match="No space left on device"):
        insert_until_full(store)
    stored = store.total_transitions
    assert stored > 0
    assert not store.reserve_ahead()
    refused = stored // 9
    assert not store.sequences.contains(source(refused))
    disk.left = 100_000_000
    assert store.reserve_ahead()
    assert store.insert(large_segment(refused), source(refused)) is not None
    store.close()


def test_after_one_lap_no_more_disk_space_is_needed(tmp_path: Path) -> None:
    disk = SmallDisk(10_000_000)
    store = ReplayStore.open(tmp_path, SPEC, 100, machine=disk.machine())
    segments = {number: plain_segment(number) for number in range(50)}
    for number in range(20):
        store.insert(segments[number], source(number))
    disk.left = 0
    for number in range(20, 50):
        store.insert(segments[number], source(number))
    assert_store_holds(store, segments)


def test_an_insert_that_needs_a_table_of_sequences_waits_for_room_for_it(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 1000)
    store.insert(plain_segment(3), source(3, name="early"))
    # The table cannot be written, as with a used-up quota, where the disk itself has room.
    unwritable = tmp_path / ".sequences.json.partial"
    unwritable.mkdir()
    stored = store.total_transitions
    for _ in range(2):
        with pytest.raises(UnavailableError, match="Is a directory"):
            insert_until_refused(store)
    refused = store.directory.head
    assert refused == 4096
    assert store.total_transitions == stored + refused - 1
    assert not store.sequences.contains(source(refused))
    unwritable.rmdir()
    assert store.insert(plain_segment(1, steps=1), source(refused)) is not None
    kill(store)
    store = ReplayStore.open(tmp_path, SPEC, 1000)
    assert store.sequences.contains(source(3, name="early"))
    store.close()


def insert_until_refused(store: ReplayStore) -> None:
    for number in range(store.directory.head, 10_000):
        store.insert(plain_segment(1, steps=1), source(number))


def test_a_disk_without_room_for_a_new_store_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path} .*No space left on device"):
        ReplayStore.open(tmp_path, SPEC, 100, machine=SmallDisk(1000).machine())
    ReplayStore.open(tmp_path, SPEC, 100).close()


def test_a_file_system_that_cannot_allocate_takes_its_blocks_by_writing(tmp_path: Path) -> None:
    def unsupported(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    file = MappedFile(tmp_path / "column.bin", 1_000_000, True, Machine("boot", unsupported))
    file.map[5] = 7
    file.allocate(500_000)
    assert (tmp_path / "column.bin").stat().st_blocks * 512 >= 500_000
    file.allocate(1_000_000)
    assert file.map[5] == 7
    assert (tmp_path / "column.bin").stat().st_size == 1_000_000
    file.close()


def watched(tmp_path: Path, least: int = 1000) -> tuple[SmallDisk, ReplayBuffer, Flusher]:
    disk, replay = SmallDisk(10_000), open_replay(tmp_path)
    return disk, replay, Flusher(replay, DiskWatch(tmp_path, least, disk.machine()), 1.0)


def test_below_the_space_limit_credits_stop_and_resume_by_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    disk, replay, flusher = watched(tmp_path)
    asked = []
    replay.limiter.on_inserts_possible(lambda: asked.append(replay.limiter.try_reserve(8)))
    flusher.tick()
    assert asked == [True]
    for left, low in ((999, True), (10, True), (1100, True), (1250, False), (1100, False)):
        disk.left = left
        flusher.tick()
        assert flusher.disk.low == low
        assert flusher.disk.free_bytes == left
        assert replay.limiter.try_reserve(8) is not low
    assert asked[1:] == [True, True]
    full, again = caplog.messages
    assert re.search(f"{tmp_path} .*999 B .*1000 B", full)
    assert re.search(rf"{tmp_path} .*1\.2 KiB", again)


def test_an_insert_without_room_stops_credits_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, replay, _ = watched(tmp_path)
    monkeypatch.setattr(ReplayStore, "insert", refuse)
    assert replay.limiter.try_reserve(8)
    with pytest.raises(UnavailableError):
        replay.insert(segment(2), source(2), 8)
    assert not replay.limiter.try_reserve(8)


def refuse(*arguments: object) -> None:
    raise UnavailableError("replay: the disk has no room")


def test_each_tick_flushes_and_reports_new_durable_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, replay, flusher = watched(tmp_path)
    told: list[dict[tuple[bytes, int], int]] = []
    flusher.on_flushed = lambda: told.append(replay.durable_sequences())
    for number in (1, 2):
        assert replay.limiter.try_reserve(8)
        replay.insert(segment(number), source(number), 8)
    assert replay.storage(flusher.disk, 0).unflushed_transitions == 16
    flusher.tick()
    assert replay.storage(flusher.disk, 0).unflushed_transitions == 0
    assert [list(sequences.values()) for sequences in told] == [[2]]
    flusher.tick()
    assert len(told) == 1
    assert replay.limiter.try_reserve(8)
    replay.insert(segment(3), source(3), 8)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        flusher.tick()
        flusher.tick()
    assert len(told) == 1
    flusher.tick()
    assert list(told[1].values()) == [3]


def fail(descriptor: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """4 MB of tmpfs; only root can mount it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


_WRITER = """
import sys
from pathlib import Path
import tests.learner_service.replay.storage.test_space as t
from learner_service.replay import ReplayStore

store = ReplayStore.open(Path(sys.argv[1]), t.LARGE, 900)
(Path(sys.argv[1]).parent / "filler").write_bytes(bytes(1_500_000))
try:
    for number in range(10_000):
        store.insert(t.large_segment(number), t.source(number))
except t.UnavailableError as error:
    print(number, error)
"""


def test_a_full_real_disk_gives_a_log_line_and_no_signal(small_file_system: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WRITER, str(small_file_system / "replay")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    number, _, line = ended.stdout.partition(" ")
    assert re.fullmatch("replay: .*No space left on device", line.strip())
    store = ReplayStore.open(small_file_system / "replay", LARGE, 900)
    assert len(store.segments.live) == int(number) > 5
    assert store.segments.damaged == 0
