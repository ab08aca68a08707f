"""A check of a replay's files reports what a learner would skip, and changes nothing."""

import re
from pathlib import Path

import pytest

from actorq.statefiles.findings import Finding
from learner_service.replay import ReplayStore
from learner_service.replay.storage.directory import HEADER_BYTES, RECORD_BYTES
from learner_service.replay.storage.mapped_files import Machine, write_checked
from learner_service.replay.storage.verify import verify
from tests.learner_service.replay.replay_greedy import GREEDY, greedy_segment
from tests.learner_service.replay.replay_segments import SPEC, kill, plain_segment, source

SEGMENTS = 60
CAPACITY = 1000
COLUMNS = ("observations", "actions", "rewards", "flags", "policy_versions", "ages")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of segments of four steps, five rows each, with each of its other files, closed."""
    store = ReplayStore.open(tmp_path / "replay", SPEC, CAPACITY)
    for number in range(SEGMENTS):
        store.insert(plain_segment(number), source(number))
    store.close()
    for name in ("sequences", "sequences.previous", "dynamic_capacity"):
        write_checked(tmp_path / "replay" / f"{name}.json", {})
    return tmp_path / "replay"


def findings(folder: Path) -> dict[str, Finding]:
    """By path; the files are as they were, and the folder is not claimed."""
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    found = verify(folder)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
    return {each.path: each for each in found}


def damaged(folder: Path) -> dict[str, Finding]:
    return {path: each for path, each in findings(folder).items() if each.state not in {"whole", "unchecked"}}


def flip(path: Path, *offsets: int) -> None:
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset] ^= 2
    path.write_bytes(data)


def test_an_undamaged_replay_has_no_findings_of_damage(folder: Path) -> None:
    found = findings(folder)
    assert found.keys() == {path.name for path in folder.iterdir()} - {"lock"}
    assert {path for path, each in found.items() if each.state != "whole"} == {"priorities.bin"}
    assert found["priorities.bin"].state == "unchecked"
    assert found["directory.bin"].detail.startswith("60 segments, 240 transitions")


def test_greedy_actions_are_checked_too(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, GREEDY, CAPACITY, further=("greedy_actions",))
    for number in range(3):
        store.insert(greedy_segment(number), source(number))
    store.close()
    assert findings(tmp_path)["greedy_actions.bin"].state == "whole"
    flip(tmp_path / "greedy_actions.bin", 0)
    assert re.match("1 of 3 .*: 0;", damaged(tmp_path)[""].detail)


def test_a_folder_without_a_replay_has_no_findings_and_is_not_changed(tmp_path: Path) -> None:
    assert verify(tmp_path / "replay") == []
    assert verify(tmp_path) == []
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("column", COLUMNS)
def test_a_flipped_bit_in_a_column_is_reported_with_its_segment(folder: Path, column: str) -> None:
    path = folder / f"{column}.bin"
    row = path.stat().st_size // CAPACITY
    flip(path, 85 * row + 1 if row > 1 else 86, 205 * row)
    found = damaged(folder)
    assert found.keys() == {""}
    assert found[""].state == "damaged"
    assert re.match("2 of 60 .*: 17, 41;", found[""].detail)


def test_at_most_ten_segments_are_named(folder: Path) -> None:
    path = folder / "rewards.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert re.match(r"60 of 60 .*: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.;", damaged(folder)[""].detail)


def test_a_truncated_column_is_reported_with_the_lost_segments(folder: Path) -> None:
    path = folder / "observations.bin"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // CAPACITY * 250])
    found = damaged(folder)
    assert found.keys() == {"", "observations.bin"}
    assert re.search(f" {size:,} .* {size // 4:,}$", found["observations.bin"].detail)
    assert re.match("10 of 60 .*: 50, 51,", found[""].detail)


def test_damaged_records_and_a_damaged_header_are_reported(folder: Path) -> None:
    path = folder / "directory.bin"
    flip(path, 3, *(HEADER_BYTES + number * RECORD_BYTES + 9 for number in (20, 59)))
    found = damaged(folder)
    assert found.keys() == {"directory.bin"}
    assert re.search("2 of 60 .*: 20, 59", found["directory.bin"].detail)
    assert "header" in found["directory.bin"].detail


def test_segments_lost_in_a_power_cut_are_reported(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, CAPACITY, machine=Machine("an earlier boot"))
    for number in range(20):
        if number == 10:
            store.flush()
        store.insert(plain_segment(number), source(number))
    kill(store)
    flip(tmp_path / "directory.bin", HEADER_BYTES + 15 * RECORD_BYTES + 9)
    found = damaged(tmp_path)
    assert found.keys() == {"directory.bin"}
    assert found["directory.bin"].detail.startswith("4 segments")


@pytest.mark.parametrize(
    ("name", "on_resume"),
    [
        ("meta.json", "other copy"),
        ("meta.copy.json", "other copy"),
        ("sequences.json", "previous table"),
        ("sequences.previous.json", "newer table"),
        ("dynamic_capacity.json", " 0"),
    ],
)
def test_a_damaged_table_is_reported_with_the_action_of_a_resume(folder: Path, name: str, on_resume: str) -> None:
    flip(folder / name, 4)
    found = damaged(folder)
    assert found.keys() == {name}
    assert on_resume in found[name].on_resume


def test_without_a_whole_description_a_resume_is_refused(folder: Path) -> None:
    for name in ("meta.json", "meta.copy.json"):
        (folder / name).write_bytes(b"")
    found = damaged(folder)
    assert found.keys() == {"meta.json", "meta.copy.json"}
    assert "refused" in found["meta.json"].on_resume


@pytest.mark.parametrize(("name", "path"), [("rewards.bin", ""), ("directory.bin", "directory.bin")])
def test_a_missing_file_is_reported(folder: Path, name: str, path: str) -> None:
    (folder / name).unlink()
    found = damaged(folder)
    assert found[path].state == "missing"
    assert name in found[path].detail
