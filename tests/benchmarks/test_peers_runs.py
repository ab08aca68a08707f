"""Runs of the comparison with other libraries: who runs what, with which settings, and when a run ends."""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from actor_service.environments import describe_environment
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import ArraySpec
from actorq.process import parse_arguments
from benchmarks.libraries.peer_runs.schedule import EvaluationSchedule
from benchmarks.libraries.peer_runs.stable_baselines3_settings import SETTINGS, STEPS, Settings
from benchmarks.libraries.peer_runs.suite_task import SuiteTask
from benchmarks.libraries.peers import actorq, systems
from benchmarks.libraries.peers.__main__ import make_runs, systems_of
from benchmarks.libraries.peers.actorq import actorq_command, run_actorq
from benchmarks.libraries.peers.process import run_tree
from benchmarks.libraries.peers.systems import (
    ACTORQ,
    ACTORQ_XQC,
    CROSSQ,
    LIBRARIES,
    MULTI_STEP,
    ONE_STEP,
    OURS,
    RECURRENT,
    RLLIB,
    SBX,
    SBX_CROSSQ,
    STABLE_BASELINES,
    SYSTEMS,
    WITH_OUR_UPDATES,
    run_system,
    settings_of,
)
from benchmarks.libraries.peers.tasks import MEMORY, TASKS, Task
from benchmarks.runs import Confirmation

BY_NAME = {task.name: task for task in TASKS}
CARTPOLE, CHEETAH, TD3 = (BY_NAME[name] for name in ("dqn/CartPole-v1", "sac/HalfCheetah-v5", "td3/HalfCheetah-v5"))
WALKER = BY_NAME["sac/dm_control/walker-walk"]


def test_a_system_without_settings_is_left_out_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = systems_of([CARTPOLE, CHEETAH, TD3], SYSTEMS[::-1], False)
    assert found == {
        CARTPOLE: [ACTORQ, STABLE_BASELINES, RLLIB],
        CHEETAH: [system for system in SYSTEMS if system != RECURRENT],
        TD3: [ACTORQ, STABLE_BASELINES, *WITH_OUR_UPDATES, SBX],
    }
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"{CARTPOLE.name} {ONE_STEP}: left out, because it has no settings for this task"
    assert [line.split(":")[0].split()[1] for line in lines] == [
        *(ACTORQ_XQC, *WITH_OUR_UPDATES, CROSSQ, SBX, SBX_CROSSQ, RECURRENT),
        RECURRENT,
        *(ACTORQ_XQC, CROSSQ, SBX_CROSSQ, RECURRENT, RLLIB),
    ]


@pytest.mark.parametrize(("system", "algorithm"), [(ACTORQ, "sac"), (ACTORQ_XQC, "xqc")])
def test_actorq_runs_a_task_of_sac_with_both_algorithms(
    system: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "run_actorq", lambda task, seed, folder: {"task": task})
    made = run_system(system, CHEETAH, 1, tmp_path / "run", None)
    assert made == {"task": replace(CHEETAH, algorithm=algorithm)}


def test_a_task_without_any_system_is_left_out() -> None:
    assert systems_of([CARTPOLE, CHEETAH, TD3], [CROSSQ], False) == {CHEETAH: [CROSSQ]}


@pytest.mark.parametrize(
    ("asked", "is_checked", "message"),
    [
        ([CROSSQ], False, "--systems: expected one with settings for td3/HalfCheetah-v5, got crossq"),
        *(([system], False, f"--systems: expected actorq too, because {system}") for system in WITH_OUR_UPDATES),
        ([ACTORQ, ACTORQ_XQC], True, "--check: expected --systems with actorq and another one with settings for td3"),
        ([ACTORQ, CROSSQ], True, "--check: expected --systems with actorq and another one with settings for td3"),
    ],
)
def test_systems_that_cannot_give_an_answer_are_refused(asked: list[str], is_checked: bool, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        systems_of([TD3], asked, is_checked)


def test_all_settings_belong_to_a_task_of_their_algorithm_or_of_a_variant() -> None:
    assert set(LIBRARIES) == set(SYSTEMS) - set(OURS)
    for system, library in LIBRARIES.items():
        assert set(library.tasks) <= set(BY_NAME), system
    for system, settings in SETTINGS.items():
        for name, each in settings.items():
            variants = {CROSSQ: "crossq", SBX_CROSSQ: "crossq", RECURRENT: "recurrentppo"}
            assert each.algorithm.lower() == variants.get(system, BY_NAME[name].algorithm)


def test_stable_baselines_has_settings_for_every_task_without_memory() -> None:
    of_memory = {task.name for task in MEMORY}
    assert set(LIBRARIES[STABLE_BASELINES].tasks) == set(BY_NAME) - of_memory
    assert set(LIBRARIES[RECURRENT].tasks) == of_memory


def test_both_libraries_have_as_many_units_of_memory_in_the_same_environment(tmp_path: Path) -> None:
    for task in MEMORY:
        command = actorq_command(task, 1, tmp_path)
        flags = command[command.index(str(tmp_path)) + 1 :]
        (config,) = parse_arguments("actorq train", "", (RunConfig,), flags)
        assert isinstance(config, RunConfig)
        theirs = SETTINGS[RECURRENT][task.name]
        assert config.environment == task.environment
        assert config.memory.units == theirs.network["lstm_hidden_size"]
        assert (config.memory.kind, config.scheme) == ("gru", "int8")
        own = gymnasium.make(task.environment)
        assert own.observation_space.shape == (2,)
        assert own.spec is not None
        assert own.spec.max_episode_steps == 500


@pytest.mark.parametrize(("system", "changed"), [(ONE_STEP, {}), (MULTI_STEP, {"n_steps": 3})])
def test_rows_with_our_updates_differ_from_the_zoo_in_these_and_in_the_multi_step_return_only(
    system: str, changed: dict[str, int]
) -> None:
    zoo, ours = (SETTINGS[name][TD3.name] for name in (STABLE_BASELINES, system))
    first, second = zoo.all_arguments(), ours.all_arguments(steps_per_update=8)
    assert second == {**first, **changed, "train_freq": 8, "gradient_steps": 1}
    assert zoo.noise == ours.noise == 0.1


@pytest.mark.parametrize(("jax", "torch"), [(SBX, STABLE_BASELINES), (SBX_CROSSQ, CROSSQ)])
def test_rows_in_jax_have_the_settings_of_those_in_torch(jax: str, torch: str) -> None:
    assert LIBRARIES[jax].environment == SBX
    assert {CHEETAH.name} <= set(SETTINGS[jax]) <= set(SETTINGS[torch])
    for name, each in SETTINGS[jax].items():
        assert each == replace(SETTINGS[torch][name], library="sbx")


def test_a_schedule_of_the_zoo_has_the_zoos_length() -> None:
    settings = Settings("SAC", {}, 500_000, annealed={"learning_rate": 8e-4})
    rate = settings.all_arguments()["learning_rate"]
    assert [rate(1.0 - steps / STEPS) for steps in (0, 250_000, 500_000, 900_000)] == pytest.approx([8e-4, 4e-4, 0, 0])


def test_evaluations_keep_to_their_share_of_the_time() -> None:
    now = [0.0]
    schedule = EvaluationSchedule(1_000, 0.1, lambda: now[0])
    assert not schedule.is_due(999)
    assert schedule.is_due(1_004)
    now[0] = 5.0
    schedule.ended(1_004, 5.0)
    # Learning needs nine times as long as the evaluation.
    now[0] = 49.9
    assert not schedule.is_due(9_000)
    now[0] = 50.0
    assert schedule.is_due(9_000)
    assert not schedule.is_due(1_999)


def test_evaluations_without_a_share_have_a_period_of_steps() -> None:
    schedule = EvaluationSchedule(1_000, 1.0, lambda: 0.0)
    schedule.ended(1_500, 5.0)
    assert [schedule.is_due(steps) for steps in (1_999, 2_000)] == [False, True]


def _store(folder: Path, system: str, task: Task, steps_per_update: float | None) -> None:
    """A complete run of seed 1 in the folder of all runs."""
    result = {"reached": True, "seconds": 9.0, "environment_steps": 9, "steps_per_s": 1.0, "peak_memory_mb": 1.0}
    settings = settings_of(system, task, 8 if system in WITH_OUR_UPDATES else None)
    stored = {**result, "steps_per_update": steps_per_update, "settings": settings}
    (folder / f"{task.name.replace('/', '-')}-{system}-1.json").write_text(json.dumps(stored), encoding="utf-8")


@pytest.mark.parametrize("system", WITH_OUR_UPDATES)
def test_rows_with_our_updates_have_those_of_the_first_run_of_actorq(system: str, tmp_path: Path) -> None:
    _store(tmp_path, system, TD3, 8)
    _store(tmp_path, ACTORQ, TD3, 8.3)
    runs = list(make_runs({TD3: [ACTORQ, system]}, 1, tmp_path, None))
    assert [(run["system"], run["settings"].get("steps_per_update")) for run in runs] == [(ACTORQ, None), (system, 8)]
    _store(tmp_path, ACTORQ, TD3, 4.0)
    with pytest.raises(SystemExit, match="other settings"):
        list(make_runs({TD3: [ACTORQ, system]}, 1, tmp_path, None))


@pytest.mark.parametrize("system", WITH_OUR_UPDATES)
def test_rows_with_our_updates_are_left_out_if_actorq_ended_before_its_first_update(
    system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _store(tmp_path, ACTORQ, TD3, None)
    runs = list(make_runs({TD3: [ACTORQ, system]}, 1, tmp_path, None))
    assert [run["system"] for run in runs] == [ACTORQ]
    assert f"{system}: left out, because actorq's run has not chosen its updates per step" in capsys.readouterr().out


def test_a_line_can_end_a_run(tmp_path: Path) -> None:
    command = [sys.executable, "-IS", "-c", "import signal; print('ready', flush=True); signal.pause()"]
    outcome = run_tree(command, "", 60.0, tmp_path / "errors", lambda _, line: line == "ready\n", grace_s=2.0)
    assert not outcome.timed_out
    assert outcome.seconds < 30.0


# Writes the files of a run as its evaluations arrive, with a line for each, and waits for ever, or ends as solved.
_RUN = """
import json, pathlib, signal, sys
run, returns, solved = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
run.mkdir()
config = {"sac": {"batch_size": 256}, "rate_limiter": {"samples_per_insert": 32.0}}
(run / "config.yaml").write_text(json.dumps(config))
with (run / "evaluations.jsonl").open("w") as file:
    for number, each in enumerate(returns):
        entry = {"wall_clock_s": float(number), "environment_steps": 1000 * number, "evaluation": {"returns": [each]}}
        print(json.dumps(entry), file=file, flush=True)
        print("training", flush=True)
summary = {"solved": solved, "wall_clock_s": 0.1, "first_transition_s": 0.0}
(run / "summary.json").write_text(json.dumps(summary))
if len(sys.argv) > 4:
    sys.exit(int(sys.argv[4]))
if not solved:
    signal.pause()
"""


def _run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    returns: list[float],
    solved: bool,
    limit_s: float,
    code: int | None = None,
) -> dict[str, Any]:
    task = Task("sac", "HalfCheetah-v5", 1_000.0, 1_000, limit_s)
    command = [sys.executable, "-IS", "-c", _RUN, str(folder / "run"), json.dumps(returns), json.dumps(solved)]
    command += [] if code is None else [str(code)]
    monkeypatch.setattr(actorq, "actorq_command", lambda *_: command)
    return run_actorq(task, 1, folder)


def test_a_run_of_actorq_ends_after_the_successor_of_the_evaluation_with_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _run(tmp_path, monkeypatch, [10.0, 1_020.0, 300.0, 1_010.0, 905.0], False, 60.0)
    assert (found["reached"], found["environment_steps"], found["steps_per_update"]) == (True, 3_000, 8.0)
    assert found["seconds"] < 30.0


def test_a_run_of_actorq_without_a_successor_counts_as_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _run(tmp_path, monkeypatch, [10.0, 1_020.0, 300.0], False, 3.0)
    assert (found["reached"], found["seconds"]) == (False, 3.0)


def test_a_run_of_actorq_whose_budget_ends_counts_as_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _run(tmp_path, monkeypatch, [10.0, 300.0], False, 60.0, code=3)
    assert (found["reached"], found["seconds"]) == (False, 60.0)
    (other := tmp_path / "other").mkdir()
    with pytest.raises(SystemExit, match="failed with exit code 1"):
        _run(other, monkeypatch, [10.0, 20.0], False, 60.0, code=1)


@pytest.mark.parametrize(("confirmed", "reached"), [(950.0, True), (850.0, False)])
def test_new_episodes_follow_the_last_evaluation_of_a_run_that_actorq_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confirmed: float, reached: bool
) -> None:
    monkeypatch.setattr(actorq, "confirm", lambda *_, **__: Confirmation(confirmed, 20, "int8"))
    found = _run(tmp_path, monkeypatch, [10.0, 1_120.0], True, 60.0)
    assert (found["reached"], found["evaluations"][-1]["return"]) == (reached, confirmed)
    assert found["seconds"] < 30.0 if reached else found["seconds"] == 60.0


def test_actorqs_own_target_is_a_tenth_higher(tmp_path: Path) -> None:
    for task, own in ((CHEETAH, 5_500.0), (BY_NAME["sac/Pendulum-v1"], -180.0)):
        [flag] = [word for word in actorq_command(task, 1, tmp_path) if word.startswith("--target-return=")]
        assert float(flag.partition("=")[2]) == pytest.approx(own)


def test_a_task_of_dm_control_is_the_same_for_the_other_libraries() -> None:
    pytest.importorskip("dm_control")
    ours, theirs = describe_environment(WALKER.environment), SuiteTask(WALKER.environment)
    assert isinstance(theirs.action_space, gymnasium.spaces.Box)
    assert isinstance(ours.actions, ArraySpec)
    assert ours.max_episode_steps is not None
    with warnings.catch_warnings(action="ignore"):
        check_env(theirs, skip_render_check=True)
    assert theirs.observation_space.shape == ours.observations.shape
    assert theirs.action_space.shape == ours.actions.shape
    np.testing.assert_array_equal(theirs.action_space.low, np.broadcast_to(ours.actions.low, ours.actions.shape))
    np.testing.assert_array_equal(theirs.action_space.high, np.broadcast_to(ours.actions.high, ours.actions.shape))
    first, _ = theirs.reset(seed=7)
    again, _ = theirs.reset(seed=7)
    np.testing.assert_array_equal(first, again)
    action = np.zeros(theirs.action_space.shape, np.float32)
    ends = [theirs.step(action)[2:4] for _ in range(ours.max_episode_steps)]
    assert set(ends[:-1]) == {(False, False)}
    assert ends[-1] == (False, True)
