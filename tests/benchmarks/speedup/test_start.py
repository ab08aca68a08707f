"""The targets of the start's benchmark, and what it reads from logs and summaries."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speedup.start import figures, first_action, targets


def _run(command_s: float = 5.0, first_action_s: float = 2.5, evaluator: float | None = 0.02) -> dict[str, Any]:
    shares = {} if evaluator is None else {"evaluator": evaluator}
    return {"solved": True, "command_s": command_s, "first_action_s": first_action_s, "energy_shares": shares}


def _missed(runs: list[dict[str, Any]]) -> set[str]:
    return {target.name for target in targets(runs) if not target.met}


def test_quick_runs_meet_all_targets() -> None:
    assert not _missed([_run()] * 5)


def test_one_slow_run_of_five_leaves_the_medians() -> None:
    assert not _missed([_run()] * 4 + [_run(20.0, 9.0, 0.2)])


@pytest.mark.parametrize(
    ("slow", "target"),
    [
        (_run(command_s=6.1), "median seconds of the command"),
        (_run(first_action_s=3.1), "median seconds to the first int8 action"),
        (_run(evaluator=0.04), "median share of the evaluator in the energy"),
    ],
)
def test_slow_runs_miss_their_target(slow: dict[str, Any], target: str) -> None:
    assert _missed([slow] * 3) == {target}


def test_a_run_without_measured_energy_has_no_share() -> None:
    energy: dict[str, Any] = {"kwh": None, "co2_kg": None, "method": "not measured", "per_service": {}}
    names = ("seed", "solved", "command_s", "updates", "evaluations_taken", "conditions")
    run = figures({**dict.fromkeys(names, 1), "energy": energy}, first_action_s=2.0)
    assert run["wh"] is None
    assert run["energy_shares"] == {}
    assert "runs whose energy was measured" in _missed([_run(), _run(evaluator=None)])


def test_the_first_int8_action_of_all_actors_counts(tmp_path: Path) -> None:
    line = "2026-01-02T03:04:{} {} INFO actor_service.roles.actor: first action, with policy version {}\n"
    (tmp_path / "actor-0.log").write_text(line.format("09.500", "actor-0", "1 int8"), encoding="utf-8")
    (tmp_path / "actor-1.log").write_text(line.format("07.250", "actor-1", "2 int8"), encoding="utf-8")
    (tmp_path / "actor-2.log").write_text(line.format("06.000", "actor-2", "1 fp32"), encoding="utf-8")
    began = datetime(2026, 1, 2, 3, 4, 5).timestamp()
    assert first_action(tmp_path, began) == pytest.approx(2.25)


def test_a_run_without_an_int8_action_fails(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="int8 action"):
        first_action(tmp_path, 0.0)
