"""The benchmark of corruption: its faults hit every kind of byte, and a few of them on a real run."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.corruption import Outcome, table
from benchmarks.faults.corruption_faults import Fault, faults, file_class
from tests.builders.forked_commands import run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies" / "00000012").mkdir(parents=True)
    (tmp_path / "policies" / "00000007").mkdir()
    (tmp_path / "run.json").write_text('{"run_id": "abc", "lives": 3}\n')
    for version in ("00000007", "00000012"):
        (tmp_path / "policies" / version / "checkpoint.json").write_text('{"version": 1}')
    (tmp_path / "empty.lock").touch()
    (tmp_path / "rows.bin").write_bytes(bytes(range(256)) * 4)
    return tmp_path


def drawn(folder: Path, count: int, seed: int = 3) -> list[Fault]:
    return faults(folder, lambda path: True, count, np.random.default_rng(seed))


def test_each_fault_changes_one_file(folder: Path) -> None:
    for fault in drawn(folder, 60):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        fault.apply(folder)
        changed = [path for path, data in before.items() if path.read_bytes() != data]
        assert changed == [folder / fault.path], fault
        changed[0].write_bytes(before[changed[0]])


def test_faults_are_spread_over_the_classes_of_files_and_the_kinds_of_bytes(folder: Path) -> None:
    found = drawn(folder, 90)
    assert found == drawn(folder, 90)
    by_class = {file_class(fault.path) for fault in found}
    assert by_class == {"run.json", "policies/N/checkpoint.json", "rows.bin"}
    assert {fault.path for fault in found} >= {
        f"policies/{version}/checkpoint.json" for version in ("00000007", "00000012")
    }
    data = (folder / "run.json").read_bytes()
    hit = {chr(data[fault.offset]) for fault in found if fault.path == "run.json" and fault.kind == "flip"}
    assert {"{", "}", '"', " ", "\n"} <= hit
    assert {fault.kind for fault in found if fault.path == "run.json"} == {"flip", "zeros", "cut"}
    assert Fault("run.json", "cut", 0) in found


def test_a_change_that_nobody_tells_is_silent_and_one_that_changes_nothing_is_harmless() -> None:
    fault = Fault("run.json", "flip", 0, mask=1)
    silent, told = Outcome(fault, (), ("run_id",), ""), Outcome(fault, ("run.json",), ("run_id",), "")
    harmless, stuck = Outcome(fault, (), (), ""), Outcome(fault, (), (), "UserError: lost")
    assert [each.silent for each in (silent, told, harmless, stuck)] == [True, False, False, True]
    assert table([silent, told, harmless, stuck])[1].split() == ["run.json", "4", "1", "1", "2", "3"]


def test_a_few_faults_on_a_real_run_are_told_or_harmless_and_it_resumes(tmp_path: Path) -> None:
    file = tmp_path / "corruption.json"
    flags = ["--steps", "1100", "--faults", "8", "--full", "1", "--seed", "5", "--files", "*[!a-z]*.json"]
    completed = run("benchmarks.faults.corruption", *flags, "--json", str(file), cwd=ROOT, timeout=220)
    assert completed.returncode == 0, completed.stderr
    result = json.loads(file.read_text())
    assert result["figures"]["faults"] == 8
    assert {target["name"]: target["met"] for target in result["targets"]} == {
        "faults": False,
        "faults that were neither told nor harmless": True,
        "share of damaged runs that resumed": True,
        "failures of actorq train --resume": True,
    }
