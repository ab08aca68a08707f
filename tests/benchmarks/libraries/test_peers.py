"""The comparison with other libraries: what a run shows, what is refused, its verdicts, its table and plot."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conditions import conditions
from benchmarks.libraries import peers
from benchmarks.libraries.peers import TASKS, make_runs, table, targets
from benchmarks.libraries.peers_environments import pins
from benchmarks.libraries.peers_plot import plot
from benchmarks.libraries.peers_process import Outcome
from benchmarks.libraries.peers_systems import (
    ACTORQ,
    RLLIB,
    STABLE_BASELINES,
    SYSTEMS,
    Evaluation,
    Task,
    actorq_command,
    actorq_evaluations,
    result,
    run_system,
)

TASK = Task("dqn", "CartPole-v1", 475.0, 5_000, 300.0)
ENDED = Outcome(0, 90.0, False, 800.0)


def _run(system: str, seconds: float, seed: int = 1, reached: bool = True) -> dict[str, Any]:
    last = Evaluation(seconds, 9_000, 480.0 if reached else 90.0, 0.5)
    return {"system": system, "task": TASK.name, "seed": seed, **result(TASK, [last], 3.0, ENDED)}


def _all(ours: float, sb3: float, rllib: float, seeds: int = 3) -> list[dict[str, Any]]:
    pairs = [(ACTORQ, ours), (STABLE_BASELINES, sb3), (RLLIB, rllib)]
    return [_run(system, seconds, seed) for seed in range(1, seeds + 1) for system, seconds in pairs]


def test_the_first_evaluation_with_the_target_ends_the_count() -> None:
    seen = [Evaluation(10.0, 5_000, 90.0, 0.5), Evaluation(23.0, 10_000, 475.0, 1.0), Evaluation(40.0, 15_000, 500.0)]
    found = result(TASK, seen, 3.0, ENDED)
    assert (found["reached"], found["seconds"], found["environment_steps"]) == (True, 23.0, 10_000)
    assert (found["steps_per_s"], found["evaluation_s"], len(found["evaluations"])) == (500.0, 1.5, 2)


@pytest.mark.parametrize("seen", [[], [Evaluation(100.0, 5_000, 90.0)], [Evaluation(300.2, 5_000, 500.0)]])
def test_a_run_without_the_target_in_its_time_counts_as_the_limit(seen: list[Evaluation]) -> None:
    found = result(TASK, seen, None, Outcome(0, 301.0, True, 800.0))
    assert (found["reached"], found["seconds"], found["start_s"]) == (False, 300.0, None)


def test_a_library_tells_its_run_among_other_lines(tmp_path: Path) -> None:
    found = run_system(STABLE_BASELINES, TASK, 7, tmp_path / "run", _installed(tmp_path, _LIBRARY))
    assert [point["return"] for point in found["evaluations"]] == [7.125, 475.0]
    assert (found["reached"], found["environment_steps"]) == (True, 10_000)
    assert found["start_s"] <= found["seconds"]


def test_a_library_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    folder = _installed(tmp_path, "import sys; sys.exit('no such environment')")
    with pytest.raises(SystemExit, match=r"^stable-baselines3 on dqn/CartPole-v1 failed with exit code 1: no such env"):
        run_system(STABLE_BASELINES, TASK, 7, tmp_path / "run", folder)


def test_evaluations_of_actorq_are_read_from_its_folder(tmp_path: Path) -> None:
    entry = {"wall_clock_s": 4.0, "environment_steps": 900, "evaluation": {"returns": [400.0, 500.0]}}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    assert actorq_evaluations(tmp_path, 0.25) == [Evaluation(4.25, 900, 450.0)]
    assert actorq_evaluations(tmp_path / "nothing", 0.0) == []


def test_actorq_has_its_preset_and_the_target_of_all() -> None:
    (task,) = (task for task in TASKS if task.name == "sac/Pendulum-v1")
    command = actorq_command(task, 3, Path("run"))
    assert command[command.index("train") + 1 :] == [
        *("--run-directory", "run", "--algorithm", "sac", "--environment", "Pendulum-v1"),
        *("--scheme", "int8", "--seed", "3", "--target-return=-200.0", "--evaluation.episodes", "20"),
        *("--max-environment-steps", "100000000"),
    ]


@pytest.mark.parametrize(
    ("ours", "sb3", "rllib", "met"),
    [(10.0, 11.0, 31.0, [True, True]), (10.0, 9.0, 29.0, [False, False]), (10.0, 300.0, 300.0, [True, True])],
)
def test_actorq_is_never_slower_than_one_and_three_times_as_fast_as_the_other(
    ours: float, sb3: float, rllib: float, met: list[bool]
) -> None:
    found = targets(TASK, _all(ours, sb3, rllib))
    assert [target.met for target in found] == met
    assert [target.measured for target in found] == pytest.approx([sb3 / ours, rllib / ours])


def test_actorq_gets_no_credit_for_a_target_that_it_missed() -> None:
    found = targets(TASK, [*_all(10.0, 300.0, 300.0, seeds=1), *(_run(ACTORQ, 300.0, 2, reached=False),) * 2])
    assert [(target.measured, target.met) for target in found] == [(0.0, False)] * 2


def test_one_seed_gives_no_verdict() -> None:
    assert {target.refused for target in targets(TASK, _all(1.0, 9.0, 9.0, seeds=1))} == {"one seed gives no verdict"}


def test_the_table_shows_a_missed_target_as_its_limit() -> None:
    rows = table({TASK: [*_all(10.0, 25.0, 40.0, 2), _run(RLLIB, 300.0, 3, reached=False)]})
    assert rows[2].startswith("| dqn/CartPole-v1 | actorq | 10.0 (10.0 to 10.0; 2 of 2 reached) | 7.0 | 0.5 |")
    assert "| rllib | 40.0 (40.0 to > 300; 2 of 3 reached) |" in rows[4]
    rows = table({TASK: [_run(ACTORQ, 10.0), _run(RLLIB, 300.0, reached=False)]})
    assert "| rllib | > 300 (> 300 to > 300; 0 of 1 reached) |" in rows[3]
    assert rows[3].endswith("| > 30.0 |")
    unseen = {"system": RLLIB, "seed": 1, **result(TASK, [], 12.0, ENDED)}
    assert table({TASK: [unseen]})[2].endswith("0 of 1 reached) | 288.0 | 0.0 | - | 800 | - |")


def test_systems_take_turns_and_runs_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    def make(system: str, task: Task, seed: int, *_: object) -> dict[str, Any]:
        made.append((system, seed))
        return _run(system, 10.0, seed)

    monkeypatch.setattr(peers, "run_system", make)
    first = list(make_runs([TASK], SYSTEMS, 2, tmp_path, tmp_path))
    assert made == [*((system, 1) for system in SYSTEMS), *((system, 2) for system in reversed(SYSTEMS))]
    assert list(make_runs([TASK], SYSTEMS, 2, tmp_path, tmp_path)) == first
    assert len(made) == 6
    with pytest.raises(SystemExit, match="other settings"):
        list(make_runs([Task("dqn", "CartPole-v1", 475.0, 5_000, 20.0)], SYSTEMS, 1, tmp_path, tmp_path))


def test_runs_of_another_machine_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "run_system", lambda system, task, seed, *_: _run(system, 10.0, seed))
    list(make_runs([TASK], [RLLIB], 1, tmp_path, tmp_path))
    here = conditions()
    monkeypatch.setattr(
        "benchmarks.runs.conditions", lambda: {**here, "machine": {**here["machine"], "cpu": "another"}}
    )
    with pytest.raises(SystemExit, match="share commit and machine: expected cpu"):
        list(make_runs([TASK], [RLLIB, ACTORQ], 1, tmp_path, tmp_path))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--environments: expected a folder"),
        (["--systems", ACTORQ, "--check"], "--check: expected --systems with actorq and another one, got actorq"),
        (["--systems", RLLIB, "--environments", "x", "--check"], "--check: expected --systems with actorq"),
        (["--tasks", "pong"], r"--tasks: expected a pattern of dqn/CartPole-v1"),
        (["--limit-s", "nan"], "--limit-s: expected seconds above 0, got nan"),
        (["--environments", __file__, "--systems", RLLIB], "cannot be made .File exists"),
    ],
)
def test_flags_that_cannot_be_followed_are_refused(flags: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    peers._flags(parser)
    with pytest.raises(SystemExit, match=message):
        peers._measure(parser.parse_args(flags))


def test_no_seeds_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    peers._flags(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--seeds", "0"])
    assert "expected a whole number of at least 1, got 0" in capsys.readouterr().err


def test_every_task_has_a_panel(tmp_path: Path) -> None:
    plot({task: _all(10.0, 25.0, 40.0) for task in TASKS}, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


# What the run of a library prints, in place of the library: its seed and its threads are the first return.
_LIBRARY = """
import json, os, sys
asked = json.load(sys.stdin)
print("a line of the library")
print('peer:{"event": "started"}')
first = asked["seed"] + int(os.environ["OMP_NUM_THREADS"]) / 8
for steps, mean in ((asked["period"], first), (2 * asked["period"], asked["target"])):
    print("peer:" + json.dumps({"event": "evaluated", "environment_steps": steps, "mean_return": mean, "seconds": 0.1}))
"""


def _installed(folder: Path, code: str) -> Path:
    """A folder of environments whose interpreter runs `code`, whatever it is asked to run."""
    environments = folder / "environments"
    environment = environments / f"{STABLE_BASELINES}-{pins(STABLE_BASELINES)}"
    (environment / "bin").mkdir(parents=True)
    (environment / "installed").touch()
    (environment / "code.py").write_text(code, encoding="utf-8")
    python = environment / "bin" / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {environment}/code.py\n", encoding="utf-8")
    python.chmod(0o755)
    return environments
