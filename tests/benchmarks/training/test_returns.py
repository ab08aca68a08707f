"""What the algorithms reach: which tasks are run, what is kept, and what the worst seed decides."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.rundirectory import RunDirectory
from benchmarks.runs import chosen, train
from benchmarks.training import returns
from benchmarks.training.returns import TASKS, Task, make_runs, verdict
from benchmarks.training.returns_plot import plot


def _made(task: Task, seed: int, folder: Path) -> dict[str, Any]:
    return {
        "seed": seed,
        "confirmed": {"mean_return": 100.0 * seed, "episodes": task.episodes, "scheme": "int8"},
        "environment_steps": 200,
        "environment_steps_per_s": 10.0,
        "updates_per_s": 5.0,
        "wall_clock_s": 20.0,
        "peak_memory_mb": {"actor-0": 100.0, "learner": 400.0},
        "evaluations": [{"environment_steps": steps, "mean_return": float(steps)} for steps in (100, 200)],
    }


@pytest.mark.parametrize(("target", "met"), [(100.0, True), (101.0, False)])
def test_the_worst_seed_decides(target: float, met: bool) -> None:
    task = Task("dqn", "CartPole-v1", target, 475.0, 1_000, 2)
    found = verdict(task, [_made(task, seed, Path()) for seed in (2, 1)])
    assert (found.measured, found.bound, found.met) == (100.0, target, met)


def test_one_seed_gives_no_verdict() -> None:
    task = Task("dqn", "CartPole-v1", 50.0, 475.0, 1_000, 1)
    found = verdict(task, [_made(task, 1, Path())])
    assert (found.measured, found.met, found.refused) == (100.0, False, "one seed gives no verdict")


def test_a_run_serves_other_targets_and_no_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "_made", _made)
    task = Task("dqn", "CartPole-v1", 100.0, 475.0, 1_000, 1)
    [first] = make_runs([task], None, 1, tmp_path)
    assert list(make_runs([replace(task, target=200.0)], None, 1, tmp_path)) == [first]
    with pytest.raises(SystemExit, match="other settings"):
        list(make_runs([replace(task, steps=2_000)], None, 1, tmp_path))


def test_runs_are_made_once_and_told_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int]] = []

    def make(task: Task, seed: int, folder: Path) -> dict[str, Any]:
        asked.append((task.name, seed))
        return _made(task, seed, folder)

    monkeypatch.setattr(returns, "_made", make)
    tasks = chosen(TASKS, ["dqn/CartPole*", "d4pg/*balance"])
    assert [task.name for task in tasks] == ["dqn/CartPole-v1", "d4pg/dm_control/cartpole-balance"]
    first = list(make_runs(tasks, 1, 1, tmp_path))
    assert asked == [(task.name, 1) for task in tasks]
    again = list(make_runs(tasks, None, 2, tmp_path))
    assert sorted(asked[2:]) == sorted((task.name, seed) for task in tasks for seed in range(2, task.seeds + 1))
    assert [run for run in again if run["seed"] == 1] == first
    assert "dqn/CartPole-v1 seed 3: 300.0 on 100 new episodes (int8)" in capsys.readouterr().out


def test_an_interrupted_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    run, real = RunDirectory(tmp_path / "run"), subprocess.run

    def stand_in(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "train" not in command:
            return real(command, **options)
        commands.append(command)
        if len(commands) == 1:
            run.create(RunConfig())
            return subprocess.CompletedProcess(command, 143, stderr="ended by SIGTERM")
        (run.root / "summary.json").write_text('{"seed": 1}')
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", stand_in)
    with pytest.raises(SystemExit, match="ended by SIGTERM"):
        train(run.root, ["--seed", "1"])
    for _ in range(2):
        assert train(run.root, ["--seed", "1"])["seed"] == 1
    first, second = commands
    assert second == [*first, "--resume"]


def test_a_pattern_that_fits_no_task_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"--task: expected a pattern of dqn/CartPole-v1, .*, got \['pong'\]"):
        chosen(TASKS, ["pong"])


def test_every_task_has_a_panel(tmp_path: Path) -> None:
    plot({task: [_made(task, 1, tmp_path)] for task in TASKS[:5]}, tmp_path / "returns.png")
    assert (tmp_path / "returns.png").read_bytes().startswith(b"\x89PNG")
