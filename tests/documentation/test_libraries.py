"""The tables of other libraries show results of all ages."""

from typing import Any

import pytest

from benchmarks.libraries.peers.systems import OURS, SYSTEMS
from benchmarks.libraries.peers.tasks import TASKS
from sitegen import results
from sitegen.tables import libraries


def cells(part: str) -> list[dict[str, str]]:
    """The rows of a table, each by the names of its columns."""
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_every_task_of_the_stored_results_is_in_the_table() -> None:
    stored = {
        (run["task"], run["system"])
        for name in results.of_module("benchmarks.libraries.peers")
        for run in results.figures(name)["runs"]
    }
    rows = cells(libraries.peers())
    assert {(row["task"], row["system"]) for row in rows} == stored
    assert all(row["steps"] and row["seconds of learning"] for row in rows)


def run(system: str, seconds: float, **more: Any) -> dict[str, Any]:
    figures = {
        "reached": True,
        "start_s": 2.0,
        "environment_steps": 9_000,
        "steps_per_s": 30.0,
        "peak_memory_mb": 500.0,
    }
    return {"task": "sac/Ant-v5", "system": system, "seconds": seconds, **figures, **more}


def test_a_run_without_energy_or_without_a_start_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = {"reached": False, "start_s": None, "steps_per_s": None, "energy": None}
    made = [run("actorq", 300.0, energy={"wh": 4.0, "method": "a model"}), run("crossq", 2_400.0, **killed)]
    monkeypatch.setattr(libraries, "newest_runs", lambda _: made)
    ours, theirs = cells(libraries.peers())
    assert (ours["Wh of the machine"], ours["times as long as ActorQ"]) == ("4", "1")
    assert (theirs["Wh of the machine"], theirs["steps/s"]) == ("", "")
    assert (theirs["seconds of learning"], theirs["times as long as ActorQ"]) == ("2,400", "at least 8")


def test_the_tasks_name_the_libraries_that_have_settings() -> None:
    rows = cells(libraries.peer_tasks())
    assert [row["task"] for row in rows] == [task.name for task in TASKS]
    found = {name for row in rows for name in row["other libraries"].split(", ")}
    assert found == set(SYSTEMS) - set(OURS)
