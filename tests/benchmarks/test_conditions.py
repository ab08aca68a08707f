"""Benchmarks say under which conditions they ran, and runs of different ones give no common verdict."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import conditions as module
from benchmarks import harness, runs
from benchmarks.conditions import NOT_RECORDED, conditions, refuse_mixed, without_verdict
from benchmarks.harness import Target, run_benchmark
from benchmarks.runs import begin, kept, recorded, refusal


def _of(commit: str, cores: int = 2) -> dict[str, Any]:
    return {"date": "2026", "commit": commit, "changes": None, "load_average": [0.5], "machine": {"cores": cores}}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The conditions of every run from here on, which a test may change."""
    found = _of("a" * 40)
    monkeypatch.setattr(runs, "conditions", lambda: dict(found))
    return found


def test_conditions_are_those_of_the_working_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    found = conditions()
    assert found.keys() == {"date", "commit", "changes", "load_average", "machine"}
    assert found["date"].endswith("+00:00")
    assert len(found["load_average"]) == 3
    assert json.loads(json.dumps(found)) == found
    answers = {"rev-parse": b"abc\n", "diff": b"+ a line"}
    monkeypatch.setattr(module, "_git", lambda *arguments: answers[arguments[0]])
    changed = conditions()
    assert (changed["commit"], len(changed["changes"])) == ("abc", 12)
    answers["diff"] = b"+ another line"
    assert conditions()["changes"] != changed["changes"]
    answers.update({"rev-parse": b"", "diff": b""})
    assert (conditions()["commit"], conditions()["changes"]) == (NOT_RECORDED, None)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (_of("b"), r"expected commit a as of seed 1, got b of seed 2; make all of them anew with another --directory"),
        ({**_of("a"), "changes": "12"}, "expected changes None as of seed 1, got 12"),
        (_of("a", cores=4), "expected cores 2 as of seed 1, got 4 of seed 2"),
        (None, "expected commit a as of seed 1, got not recorded"),
    ],
)
def test_runs_of_other_commits_and_machines_are_refused(other: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        refuse_mixed({"seed 1": _of("a"), "seed 2": other})


def test_date_and_load_may_differ() -> None:
    later = {**_of("a"), "date": "2027", "load_average": [9.0]}
    assert without_verdict({"seed 1": _of("a"), "seed 2": later}) == ""


def test_runs_from_before_conditions_were_recorded_are_shown_without_a_verdict() -> None:
    reason = refusal([{"seed": 1}, {"seed": 2}])
    assert reason == "runs without a recorded commit give no verdict"
    [target] = harness.without_verdict([Target("return", 9.0, 1.0, at_most=False)], reason)
    assert not target.met
    assert str(target) == f"NONE return: 9 (at least 1); {reason}"
    with pytest.raises(SystemExit, match=r"not recorded as of run 1 \(seed 1\), got a of run 2"):
        refusal([{"seed": 1}, {"seed": 2, "conditions": _of("a")}])


def test_a_run_has_the_conditions_under_which_it_began(now: dict[str, Any], tmp_path: Path) -> None:
    first = kept(tmp_path / "run-1.json", {}, lambda: {"final": 1})
    assert first["conditions"] == now
    now["load_average"] = [7.0]
    second = kept(tmp_path / "run-2.json", {}, lambda: {"final": 2})
    assert second["conditions"]["load_average"] == [7.0]
    assert kept(tmp_path / "run-1.json", {}, lambda: {"final": 9}) == first


def test_a_run_is_not_made_beside_one_of_another_commit(now: dict[str, Any], tmp_path: Path) -> None:
    first = kept(tmp_path / "run-1.json", {}, lambda: {"final": 1})
    now["commit"] = "b" * 40
    with pytest.raises(SystemExit, match=r"expected commit a+ as of run-1, got b+ of this one"):
        kept(tmp_path / "run-2.json", {}, lambda: pytest.fail("made"))
    assert kept(tmp_path / "run-1.json", {}, lambda: pytest.fail("made")) == first


def test_nothing_is_made_beside_a_run_without_conditions_and_none_goes_on(now: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").touch()
    assert recorded(tmp_path / "old") is None
    for name in ("old", "new"):
        with pytest.raises(SystemExit, match=r"expected commit not recorded as of old, got a+ of this one"):
            begin(tmp_path / name)


def test_results_have_conditions_and_a_refused_target_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--check", "--json", str(tmp_path / "result.json")])
    refused = Target("worst seed of 1", 9.0, 1.0, at_most=False, refused=harness.ONE_SEED)
    assert run_benchmark("", lambda parser: None, lambda arguments: ({}, [refused])) == 1
    assert "NONE worst seed of 1: 9 (at least 1); one seed gives no verdict" in capsys.readouterr().out
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"date", "commit", "changes", "load_average", "machine"} < result.keys()
    assert [target["met"] for target in result["targets"]] == [False]
    assert run_benchmark("", lambda parser: None, lambda arguments: ({}, [Target("speed", 9.0, 1.0, False)])) == 0


def test_a_result_has_no_folders_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "speed.json"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "speed.py"), "--json", str(file), "--task", "dqn/CartPole-v1"])
    flags = lambda parser: parser.add_argument("--task")  # noqa: E731
    assert run_benchmark("", flags, lambda arguments: ({}, [])) == 0
    command = json.loads(file.read_text(encoding="utf-8"))["command"]
    assert command == "python -m benchmarks.speed --json speed.json --task dqn/CartPole-v1"


def test_a_missing_package_of_a_benchmark_is_one_line() -> None:
    with pytest.raises(SystemExit, match=r"^no_such_package is missing: pip install it$"):
        harness.optional_module("no_such_package.part", "pip install it")
