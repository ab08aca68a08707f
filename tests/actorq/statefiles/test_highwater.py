"""Numbers are used once, however often the process dies."""

import shutil
import sys
import threading
from pathlib import Path

import pytest

from actorq.statefiles.highwater import BLOCK, LEAP, HighWaterMark


def reopened(path: Path, known: int = 0) -> HighWaterMark:
    """The state for a process that starts after another one was killed."""
    copy = path.with_suffix(".found.json")
    shutil.copy(path, copy)
    return HighWaterMark(copy, known)


def test_a_new_mark_begins_at_zero(tmp_path: Path) -> None:
    assert HighWaterMark(tmp_path / "mark.json", 0).floor == 0


def test_a_number_is_below_the_mark_on_disk_when_it_may_be_used(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    mark = HighWaterMark(path, 0)
    for number in range(1, 5 * BLOCK):
        mark.reserve(number)
        assert number <= reopened(path).floor <= number + 2 * BLOCK


def test_a_jump_is_on_disk_too(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    HighWaterMark(path, 0).reserve(10**12)

    assert reopened(path).floor >= 10**12


def test_few_numbers_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mark.json"
    mark = HighWaterMark(path, 0)
    mark.reserve(1)
    # The disk accepts no more writes.
    path.with_name(f".{path.name}.partial").mkdir()

    for number in range(2, 2 + BLOCK):
        mark.reserve(number)
    with pytest.raises(OSError, match="directory"):
        mark.reserve(2 + BLOCK)
    path.with_name(f".{path.name}.partial").rmdir()
    mark.reserve(2 + BLOCK)

    assert reopened(path).floor >= 2 + BLOCK


def test_a_closed_mark_leaves_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    mark = HighWaterMark(path, 0)
    mark.reserve(7)
    mark.close()

    again = HighWaterMark(path, 5)
    assert again.floor == 7
    again.reserve(8)
    assert reopened(path).floor >= 8


def test_a_block_that_is_being_reserved_leaves_no_gap_either(tmp_path: Path) -> None:
    def late(*_: object) -> None:
        """Block a new thread at its first call."""
        sys.setprofile(None)
        threading.Event().wait(0.2)

    path = tmp_path / "mark.json"
    mark = HighWaterMark(path, 0)
    threading.setprofile(late)
    try:
        # From the second half of the block on, a thread reserves the next block.
        for number in (1, 2 + BLOCK // 2):
            mark.reserve(number)
    finally:
        threading.setprofile(None)
    mark.close()
    for thread in threading.enumerate():
        if thread.name == "high water":
            thread.join()
    assert HighWaterMark(path, 0).floor == 2 + BLOCK // 2


def test_the_mark_is_never_below_the_known_number(tmp_path: Path) -> None:
    mark = HighWaterMark(tmp_path / "mark.json", 0)
    mark.reserve(7)
    mark.close()

    assert HighWaterMark(tmp_path / "mark.json", 30).floor == 30


@pytest.mark.parametrize("found", [b"", b"{}", b'{"mark": 3}', b"\xff" * 40, None])
def test_logs_a_lost_mark_and_continues_far_above(
    found: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mark.json"
    HighWaterMark(path, 0).reserve(20)
    path.unlink() if found is None else path.write_bytes(found)

    again = HighWaterMark(path, 10)

    assert again.floor == 10 + LEAP
    (line,) = caplog.messages
    assert "mark.json" in line
    assert str(10 + LEAP + 1) in line


def test_detects_every_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    HighWaterMark(path, 0).reserve(20)
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(bytes((*whole[:index], whole[index] ^ 4, *whole[index + 1 :])))
        assert HighWaterMark(path, 20).floor in (20 + BLOCK, 20 + LEAP)
