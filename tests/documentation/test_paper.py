"""The page of the paper's tasks shows which tasks were run, with and without stored results."""

from typing import Any

import pytest

from benchmarks.speedup.paper.tasks import TASKS
from sitegen import results
from sitegen.parts import part


def run(scheme: str, mean_return: float, **others: Any) -> dict[str, Any]:
    return {
        **{"task": "dqn/CartPole-v0", "scheme": scheme, "seed": 1, "environment_steps": 1_000, "seconds": 10.0},
        "confirmed": {"mean_return": mean_return, "scheme": scheme},
        **{"curve": [(4.0, 500, mean_return)], "acted": {scheme: 1_000}, "wh": None, "co2_g": None},
        **others,
    }


def rows_of(name: str) -> list[list[str]]:
    lines = [line for line in part(name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_without_a_result_every_task_is_shown_as_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "stored", list)
    rows = rows_of("paper returns")
    assert len(rows) == len(TASKS)
    assert {tuple(row[3:]) for row in rows} == {("not run", "not run", "")}
    for name in ("paper", "paper over tasks"):
        assert part(name) == "No result of `python -m benchmarks.speedup.paper` is stored."


def test_a_part_of_the_tasks_is_shown_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run("fp32", 200.0, wh=3.0, co2_g=1.0), run("int8", 199.0, wh=2.0, co2_g=1.0), run("fp16", 100.0)]
    stored = {"command": "python -m benchmarks.speedup.paper", "date": "2026-01-02", "figures": {"runs": runs}}
    monkeypatch.setattr(results, "stored", lambda: ["paper"])
    monkeypatch.setattr(results, "load", lambda name: stored)
    first, second, *_ = rows_of("paper returns")
    assert first == ["DQN on CartPole-v0", "180", "182", "200", "199", "1"]
    assert second[3:] == ["not run", "not run", ""]
    by_actors = {row[0]: row[1:] for row in rows_of("paper")}
    assert list(by_actors) == ["fp32", "fp16", "int8"]
    # One seed has no interval. Without energy there is no ratio of it.
    assert by_actors["int8"] == ["1", "199", "0.994", "4 (1 of 1 runs)", "1", "1.5", "1", "100", "100%"]
    assert by_actors["fp16"][3:] == ["(0 of 1 runs)", "", "", "", "100", "100%"]
    assert {row[0] for row in rows_of("paper over tasks")} == {"DQN"}
