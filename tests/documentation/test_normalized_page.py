"""The tables of the comparison of XQC with SAC, with a part of its runs."""

from typing import Any

import pytest

from benchmarks.training.normalized.systems import SCHEMES
from sitegen import parts, results
from sitegen.tables import normalized


def run(task: str, system: str, seed: int, mean_return: float) -> dict[str, Any]:
    return {
        "task": task,
        "system": system,
        "seed": seed,
        "confirmed": {"mean_return": mean_return},
        "updates_per_s": 80.0,
        "environment_steps": 5_000,
        "precision": "fp32",
        "limit_s": 60.0,
        "evaluations": [{"wall_clock_s": 20.0, "mean_return": mean_return - 1}],
        "errors": {scheme: {"mean": 0.0125, "max": 0.5} for scheme in SCHEMES},
    }


def stored(monkeypatch: pytest.MonkeyPatch, *runs: dict[str, Any]) -> None:
    content = {"runs": list(runs), "random": {"Pendulum-v1": -1_200.0, "Walker2d-v5": 0.0}}
    monkeypatch.setattr(normalized, "of_module", lambda _: ["normalized"])
    monkeypatch.setattr(normalized, "figures", lambda _: content)
    monkeypatch.setattr(results, "figures", lambda _: content)


def test_tables_show_the_runs_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    pendulum = [run("Pendulum-v1", system, seed, -150.0) for system in ("sac", "xqc") for seed in (1, 2)]
    stored(monkeypatch, *pendulum, run("Walker2d-v5", "sac", 1, 900.0))
    returns, compared, over_time, errors = (
        parts.part(f"normalized {name}").splitlines()[2:] for name in ("returns", "comparison", "over time", "errors")
    )
    assert [len(each) for each in (returns, compared, over_time, errors)] == [3, 1, 3, 3]
    assert "`xqc`" in compared[0]
    assert "100% (100% to 100%) | 50% (50% to 50%)" in compared[0]
    assert returns[2].startswith("| Walker2d-v5 | `sac` |")
    # No evaluation in the first quarter of the time.
    assert over_time[0].endswith("| 60 |  | -151 | -151 | -151 |")
    assert errors[0].count("1.25%") == errors[0].count("50.00%") == len(SCHEMES)
