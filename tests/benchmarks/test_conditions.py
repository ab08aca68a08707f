"""Runs say under which conditions they were made, are made once, and give a verdict only with runs of equal ones."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.rundirectory import RunDirectory
from benchmarks import harness, runs
from benchmarks.conditions import refuse_mixed, without_verdict
from benchmarks.harness import Target
from benchmarks.libraries import parity
from benchmarks.onpolicy import correction, ppo
from benchmarks.onpolicy.settings import TASKS as ON_POLICY
from benchmarks.runs import begin, cached, forget_incomplete, refusal


def _of(commit: str, cores: int = 2) -> dict[str, Any]:
    return {"date": "2026", "commit": commit, "changes": None, "load_average": [0.5], "machine": {"cores": cores}}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The conditions of every run from here on, which a test may change."""
    found = _of("a" * 40)
    monkeypatch.setattr(runs, "conditions", lambda: dict(found))
    return found


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (_of("b"), "expected commit a as of seed 1, got b of seed 2; make all of them anew"),
        ({**_of("a"), "changes": "12"}, "expected changes None as of seed 1, got 12"),
        (_of("a", cores=4), "expected cores 2 as of seed 1, got 4 of seed 2"),
        (None, "expected commit a as of seed 1, got not recorded"),
    ],
)
def test_runs_of_other_commits_and_machines_are_refused(other: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        refuse_mixed({"seed 1": _of("a"), "seed 2": other})


def test_date_and_load_may_differ_and_unrecorded_runs_give_no_verdict() -> None:
    assert without_verdict({"1": _of("a"), "2": {**_of("a"), "date": "2027", "load_average": [9.0]}}) == ""
    reason = refusal([{"seed": 1}, {"seed": 2}])
    [target] = harness.without_verdict([Target("return", 9.0, 1.0, at_most=False)], reason)
    assert (target.met, target.refused) == (False, "runs without a recorded commit give no verdict")


def test_a_run_is_made_once_and_keeps_the_conditions_under_which_it_began(now: dict[str, Any], tmp_path: Path) -> None:
    # A result that was half written is none.
    (tmp_path / ".run-1.json.partial").write_text('{"final": ')
    first = cached(tmp_path / "run-1.json", {"steps": 1}, lambda: {"final": 1})
    assert (first["final"], first["conditions"]) == (1, now)
    now["load_average"] = [7.0]
    assert cached(tmp_path / "run-1.json", {"steps": 1}, lambda: pytest.fail("made")) == first
    with pytest.raises(SystemExit, match="other settings"):
        cached(tmp_path / "run-1.json", {"steps": 2}, lambda: pytest.fail("made"))
    now["commit"] = "b" * 40
    with pytest.raises(SystemExit, match=r"expected commit a+ as of run-1, got b+ of this one"):
        cached(tmp_path / "run-2.json", {}, lambda: pytest.fail("made"))


def test_nothing_is_made_beside_a_run_without_conditions(now: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").touch()
    for name in ("old", "new"):
        with pytest.raises(SystemExit, match=r"expected commit not recorded as of old, got a+ of this one"):
            begin(tmp_path / name)


def test_a_killed_run_is_forgotten_and_a_complete_one_is_not(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig())
    with run.locked(lambda: None), pytest.raises(SystemExit, match="in use by another actorq train"):
        forget_incomplete(run.root)
    (run.root / "command_s.json").write_text("1.0")
    forget_incomplete(run.root)
    assert run.config.exists()
    (run.root / "command_s.json").unlink()
    forget_incomplete(run.root)
    assert not run.root.exists()


Runs = Callable[[Path], Iterator[dict[str, Any]]]


@pytest.mark.parametrize(
    ("runs_of", "module"),
    [
        (partial(parity.make_runs, parity.TASKS[:1], 1, 100, 1), parity),
        (partial(ppo.make_runs, ON_POLICY[:1], 1), ppo),
        (partial(correction.make_runs, correction.TASKS[:1], 1), correction),
    ],
)
def test_the_second_side_of_a_comparison_is_refused_on_another_commit_before_it_runs(
    now: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs_of: Runs, module: Any
) -> None:
    made: list[str] = []

    def make(*_: Any) -> dict[str, Any]:
        made.append(now["commit"])
        now["commit"] = "b" * 40
        counts = {"environment_steps": 1, "updates": 1, "wall_clock_s": 1.0, "seconds": 1.0, "mean_return": 1.0}
        queue = dict.fromkeys(("mismatch", "divergence", "policy_lag"), 0.0)
        final = {"mean_return": 1.0, "episodes": 1, "scheme": "int8"}
        return {**counts, "rollout_queue": queue, "final": final}

    if hasattr(module, "_SIDES"):
        monkeypatch.setattr(module, "_SIDES", dict.fromkeys(module._SIDES, make))
    else:
        monkeypatch.setattr(module, "_run", make)
    with pytest.raises(SystemExit, match=r"expected commit a+ as of .*, got b+ of this one"):
        list(runs_of(tmp_path))
    assert made == ["a" * 40]
