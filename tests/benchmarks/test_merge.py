"""Runs of several machines of one kind become one benchmark."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runs
from benchmarks.merge import merge
from benchmarks.runs import cached


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The conditions of every run, which a test may change."""
    found = {"date": "2026", "commit": "a", "changes": None, "load_average": [0.5], "machine": {"cores": 2}}
    monkeypatch.setattr(runs, "conditions", lambda: dict(found))
    return found


def _run(directory: Path, name: str) -> None:
    (directory / name).mkdir(parents=True)
    (directory / name / "summary.json").write_text(name)
    cached(directory / f"{name}.json", {}, lambda: {"final": name})


def test_merged_runs_are_not_repeated(now: dict[str, Any], tmp_path: Path) -> None:
    _run(tmp_path / "first", "seed-1")
    now |= {"date": "2027", "load_average": [9.0]}
    _run(tmp_path / "second", "seed-2")
    assert merge(tmp_path / "all", [tmp_path / "first", tmp_path / "second"]) == ["seed-1", "seed-2"]
    for name, date in (("seed-1", "2026"), ("seed-2", "2027")):
        found = cached(tmp_path / "all" / f"{name}.json", {}, lambda: pytest.fail("made"))
        assert (found["final"], found["conditions"]["date"]) == (name, date)
        assert (tmp_path / "all" / name / "summary.json").read_text() == name
    # Nothing is left to copy, and a new run of one machine is added.
    assert merge(tmp_path / "all", [tmp_path / "first"]) == []
    _run(tmp_path / "first", "seed-3")
    assert merge(tmp_path / "all", [tmp_path / "first"]) == ["seed-3"]


def test_an_interrupted_copy_is_made_again(now: dict[str, Any], tmp_path: Path) -> None:
    _run(tmp_path / "first", "seed-1")
    (tmp_path / "all" / "seed-1").mkdir(parents=True)
    assert merge(tmp_path / "all", [tmp_path / "first"]) == ["seed-1"]
    assert (tmp_path / "all" / "seed-1" / "summary.json").read_text() == "seed-1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": "b"}, "share commit and machine: expected commit a as of .*first/seed-1, got b of .*second/seed-2"),
        ({"machine": {"cores": 4}}, "expected cores 2 as of .*seed-1, got 4"),
    ],
)
def test_runs_of_another_commit_or_machine_are_refused(
    now: dict[str, Any], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    _run(tmp_path / "first", "seed-1")
    now |= change
    _run(tmp_path / "second", "seed-2")
    with pytest.raises(SystemExit, match=message):
        merge(tmp_path / "all", [tmp_path / "first", tmp_path / "second"])
    assert not (tmp_path / "all").exists()


def test_two_runs_of_one_name_and_folders_without_runs_are_refused(now: dict[str, Any], tmp_path: Path) -> None:
    _run(tmp_path / "first", "seed-1")
    now["date"] = "2027"
    _run(tmp_path / "second", "seed-1")
    with pytest.raises(SystemExit, match=r"got seed-1 in .*first and .*second: remove one"):
        merge(tmp_path / "all", [tmp_path / "first", tmp_path / "second"])
    with pytest.raises(SystemExit, match=r"expected a folder with runs of a benchmark, got .*none"):
        merge(tmp_path / "all", [tmp_path / "none"])
    assert json.loads((tmp_path / "first" / "seed-1.json").read_text())["final"] == "seed-1"
