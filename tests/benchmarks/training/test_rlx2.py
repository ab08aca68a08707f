"""The benchmark of sparse training asks for what it says, finds what it has, and compares what it should."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actorq.config.run_config import RunConfig
from actorq.process import Sources, argument_parser
from benchmarks.training.rlx2 import mean_returns, targets
from benchmarks.training.rlx2_plot import plot
from benchmarks.training.rlx2_sparsities import PAPER, Sparsity
from benchmarks.training.rlx2_tasks import ALL, METHODS, TASKS, Task, folder_of, run_task, settled


@pytest.fixture
def task() -> Task:
    return replace(TASKS[0], steps=1000, seeds=2, episodes=3)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("method", METHODS)
def test_flags_of_a_method_are_settings_of_a_run(task: Task, method: str) -> None:
    config = _config(task.flags(method, "fp32", 7))
    assert (config.algorithm, config.environment, config.seed) == (task.algorithm, task.environment, 7)
    assert (config.scheme, config.max_environment_steps) == ("fp32", task.steps)
    assert config.rate_limiter.samples_per_insert == 256 * task.updates_per_step
    expected = {"control": "dense", "structured": "rlx2"}.get(method, method)
    assert config.sparsity.method == expected
    assert config.sparsity.structured == (method == "structured")
    assert (config.multi_step, config.dynamic_capacity.enabled) == (
        (True, True) if method == "control" else (None, None)
    )
    if expected != "dense":
        assert (config.sparsity.actor, config.sparsity.critic) == (task.sparsity.actor, task.sparsity.critic)
        assert config.sparsity.period_updates * 100 == task.steps * task.updates_per_step


def test_fewer_updates_a_step_leave_the_schedules_their_shares(task: Task) -> None:
    config = _config(replace(task, updates_per_step=0.5).flags("rlx2", "int8", 1))
    assert config.rate_limiter.samples_per_insert == 128
    assert config.sparsity.period_updates == 5
    assert config.dynamic_capacity.period_steps == 10


def test_a_run_is_settled_in_its_last_quarter() -> None:
    points = [{"environment_steps": steps, "mean_return": steps / 10} for steps in range(50, 1001, 100)]
    assert settled(points, 1000) == pytest.approx((850 + 950) / 20)
    with pytest.raises(SystemExit, match="more --steps"):
        settled(points[:3], 1000)


def test_a_complete_run_is_found(task: Task, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, task, "rlx2", "int8", 1)
    folder.mkdir()
    kept = {
        "summary": _summary([1.0, 2.0, 3.0, 4.0]),
        "command_s": 1.5,
        "confirmed": {"mean_return": 5.0, "episodes": 3, "scheme": "int8"},
    }
    for name, value in kept.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    run = run_task(tmp_path, task, "rlx2", "int8", 1)
    assert (run["settled"], run["mean"], run["confirmed"]["mean_return"]) == (4.0, 2.5, 5.0)
    assert (run["task"], run["method"], run["directory"]) == (task.name, "rlx2", str(folder))


def test_a_run_of_other_settings_is_another_run(task: Task, tmp_path: Path) -> None:
    denser = replace(task, sparsity=replace(task.sparsity, critic=0.5))
    shorter, lazier = replace(task, steps=500), replace(task, updates_per_step=0.5)
    folders = [folder_of(tmp_path, each, "rlx2", "int8", 1) for each in (task, denser, shorter, lazier)]
    assert len(set(folders)) == 4
    # Nothing is sparse in it.
    assert folder_of(tmp_path, denser, "control", "int8", 1) == folder_of(tmp_path, task, "control", "int8", 1)


def test_bounds_are_on_means_over_seeds_and_only_of_methods_that_were_run(task: Task) -> None:
    runs = _runs({"dense": (80.0, 120.0), "rlx2": (95.0, 97.0), "rigl": (50.0, 60.0)})
    confirmed = mean_returns(runs, lambda run: run["confirmed"]["mean_return"])
    assert confirmed == {"dense": 100.0, "rlx2": 96.0, "rigl": 55.0}
    found = {target.name.split(": ")[1].split(",")[0]: target for target in targets(task, runs)}
    assert {name: target.met for name, target in found.items()} == {"rlx2 over dense": True, "rlx2 over rigl": True}
    assert found["rlx2 over dense"].measured == pytest.approx(0.96)


def test_new_episodes_decide_and_the_last_quarter_is_told_beside(task: Task) -> None:
    runs = _runs({"dense": (100.0, 100.0), "rlx2": (60.0, 60.0)}, settled={"dense": 50.0, "rlx2": 100.0})
    [target] = targets(task, runs)
    assert (target.measured, target.met) == (0.6, False)
    assert target.name.endswith("2 seeds (last quarter: 2.00)")


def test_one_seed_gives_no_verdict(task: Task) -> None:
    [target] = targets(task, _runs({"dense": (100.0,), "rlx2": (100.0,)}))
    assert (target.measured, target.met, target.refused) == (1.0, False, "one seed gives no verdict")


def test_the_plot_has_a_curve_for_every_method(task: Task, tmp_path: Path) -> None:
    runs = [
        {"method": method, **_summary([value * seed for value in (1.0, 2.0, 4.0)])} for method in ALL for seed in (1, 2)
    ]
    plot({task: runs}, tmp_path / "images" / "rlx2.png")
    assert (tmp_path / "images" / "rlx2.png").stat().st_size > 10_000


def test_the_documentation_has_the_same_sparsities_and_commands_that_are_settings() -> None:
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "sparse.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(td3|sac)` \| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    documented = {(algorithm, environment): Sparsity(float(a), float(c)) for algorithm, environment, a, c in rows}
    assert documented == PAPER
    commands = re.findall(r"^actorq train ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        config = _config(command.replace("\\\n", "").split())
        sparsity = config.sparsity
        assert PAPER[config.algorithm, config.environment] == Sparsity(sparsity.actor, sparsity.critic)


def _runs(returns: dict[str, tuple[float, ...]], settled: dict[str, float] | None = None) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "seed": seed,
            "settled": (settled or {}).get(method, 1.0),
            "confirmed": {"mean_return": value},
        }
        for method, values in returns.items()
        for seed, value in enumerate(values, start=1)
    ]


def _config(flags: list[str]) -> RunConfig:
    models = (RunConfig,)
    return Sources.read(models, argument_parser("train", "", models).parse_args(flags)).resolve(RunConfig)


def _summary(returns: list[float]) -> dict[str, Any]:
    steps = [round(1000 * (number + 1) / len(returns)) for number in range(len(returns))]
    return {
        "evaluations": [
            {"environment_steps": at, "mean_return": value} for at, value in zip(steps, returns, strict=True)
        ]
    }
