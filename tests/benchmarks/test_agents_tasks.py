"""The benchmark of several agents: equal settings in all libraries, the runs that it makes, and its verdicts."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorq.config.run_config import RunConfig
from actorq.process import parse_arguments
from benchmarks.environments.doors import best_return
from benchmarks.harness import run_benchmark
from benchmarks.libraries.peer_runs.rllib_agents import training
from benchmarks.libraries.peer_runs.stable_baselines3_agents import TeamRows, arguments, team_returns
from benchmarks.libraries.peers.actorq import actorq_command
from benchmarks.libraries.peers.environments import pins, requirements
from benchmarks.libraries.peers.systems import RLLIB as PLAIN_RLLIB
from benchmarks.libraries.peers.systems import STABLE_BASELINES as PLAIN_STABLE_BASELINES
from benchmarks.runs import Confirmation
from benchmarks.training.agents import __main__ as agents
from benchmarks.training.agents import systems
from benchmarks.training.agents.__main__ import MEANINGS, make_runs, targets
from benchmarks.training.agents.systems import (
    ACTORQ,
    JOINT,
    OTHERS,
    OURS,
    RLLIB,
    STABLE_BASELINES,
    SYSTEMS,
    run_system,
    settings_of,
    task_of,
)
from benchmarks.training.agents.tasks import RESCALED_SPREAD, TASKS, AgentsTask
from sitegen.tables import agents as tables

CONDITIONS: dict[str, Any] = {"commit": "c", "changes": None, "machine": {}}
SPREAD, DOORS = TASKS
STILL = np.zeros(6, np.int64)
ROOT = Path(__file__).parents[2]


def config_of(task: AgentsTask, system: str, folder: Path) -> RunConfig:
    command = actorq_command(task_of(system, task), 3, folder)
    (found,) = parse_arguments("actorq train", "", (RunConfig,), command[command.index(str(folder)) + 1 :])
    assert isinstance(found, RunConfig)
    return found


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_all_libraries_learn_with_the_same_settings(task: AgentsTask, tmp_path: Path) -> None:
    config, settings = config_of(task, ACTORQ, tmp_path), task.settings
    assert settings is not None
    ours, theirs, baselines = config.ppo, training(vars(settings)), arguments(vars(settings))
    assert (config.scheme, config.algorithm, config.actors) == ("int8", "ppo", 1)
    assert config.environments_per_actor == settings.environments
    assert (ours.rollout_size, ours.batch_size) == (
        theirs["train_batch_size_per_learner"],
        theirs["minibatch_size"],
    )
    assert (ours.epochs, ours.learning_rate) == (theirs["num_epochs"], theirs["lr"])
    assert (ours.discount, ours.gae_lambda, ours.clip) == (theirs["gamma"], theirs["lambda_"], theirs["clip_param"])
    assert (ours.value_clip, ours.target_kl, ours.learning_rate_end) == (None, None, None)
    # Their loss of values is the squared error, ours is half of it.
    assert (ours.entropy_cost, ours.value_cost) == (theirs["entropy_coeff"], 2 * theirs["vf_loss_coeff"])
    assert ours.max_gradient_norm == theirs["grad_clip"]
    assert ours.hidden_sizes == ours.value_sizes == settings.hidden_sizes
    assert ours.activation == settings.activation
    assert not config.normalize_observations
    assert not config.queue.normalize_rewards
    # The names of the other library for the same values.
    same = {"batch_size": "minibatch_size", "n_epochs": "num_epochs", "learning_rate": "lr", "gamma": "gamma"}
    same |= {"gae_lambda": "lambda_", "clip_range": "clip_param", "ent_coef": "entropy_coeff"}
    same |= {"vf_coef": "vf_loss_coeff", "max_grad_norm": "grad_clip"}
    assert {name: baselines[name] for name in same} == {name: theirs[other] for name, other in same.items()}
    assert baselines["n_steps"] * settings.environments == ours.rollout_size
    assert baselines["policy_kwargs"]["net_arch"] == {"pi": list(ours.hidden_sizes), "vf": list(ours.value_sizes)}
    # A rollout is one segment of all environments.
    assert config.actor.segment_length * config.environments_per_actor == ours.rollout_size
    assert config.evaluation.episodes == task.episodes


def test_only_the_critic_differs_between_the_systems_of_actorq(tmp_path: Path) -> None:
    own, joint = (config_of(SPREAD, system, tmp_path).model_dump() for system in (ACTORQ, JOINT))
    assert (own["agents"]["critic"], joint["agents"]["critic"]) == ("own", "joint")
    joint["agents"]["critic"] = "own"
    assert own == joint


def test_targets_are_between_random_actions_and_the_best_return() -> None:
    for task in TASKS:
        assert task.random < task.target < task.best
        assert (task.target - task.random) / (task.best - task.random) > 0.49
    assert pytest.approx(-29.0) == RESCALED_SPREAD
    assert best_return() == DOORS.best


def test_the_preset_of_mpe_has_the_settings_of_the_benchmark(tmp_path: Path) -> None:
    preset, ours = RunConfig(environment=SPREAD.environment), config_of(SPREAD, ACTORQ, tmp_path)
    assert preset.algorithm == "ppo"
    assert (preset.ppo, preset.actor, preset.agents) == (ours.ppo, ours.actor, ours.agents)
    assert preset.environments_per_actor == ours.environments_per_actor
    assert preset.evaluation.episodes == ours.evaluation.episodes


@pytest.mark.parametrize("library", [PLAIN_STABLE_BASELINES, PLAIN_RLLIB])
def test_versions_of_included_files_are_pinned(library: str) -> None:
    own, included = requirements(f"{library}-agents").read_text(encoding="utf-8"), requirements(library)
    assert f"-r {included.name}" in own.splitlines()
    assert pins(f"{library}-agents") != pins(library)
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in own.splitlines() if "==" in line]
    assert pinned
    assert {*pinned} <= {*constraints}


def test_a_changed_version_in_an_included_file_needs_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.libraries.peers.environments._REQUIREMENTS", tmp_path)
    (tmp_path / "more.txt").write_text("-r base.txt\nmore==1\n")
    digests = []
    for version in (1, 2):
        (tmp_path / "base.txt").write_text(f"base=={version}\n")
        digests.append(pins("more"))
    assert digests[0] != digests[1]


def test_systems_take_turns_and_complete_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, int]] = []

    def run(system: str, task: AgentsTask, seed: int, folder: Path, environments: Path | None) -> dict[str, Any]:
        asked.append((task.name, system, seed))
        return run_of(task, system, seed, 10.0)

    monkeypatch.setattr(agents, "run_system", run)
    made = list(make_runs([SPREAD], SYSTEMS, 2, tmp_path, None))
    assert [each[1:] for each in asked] == [
        *((system, 1) for system in SYSTEMS),
        *((system, 2) for system in reversed(SYSTEMS)),
    ]
    again = list(make_runs([SPREAD], SYSTEMS, 2, tmp_path, None))
    assert len(asked) == len(made) == len(again)
    # Agents of its rows cannot leave.
    fitting = [run["system"] for run in make_runs([DOORS], SYSTEMS, 1, tmp_path, None)]
    assert fitting == [system for system in SYSTEMS if system != STABLE_BASELINES]
    with pytest.raises(SystemExit, match="made with other settings"):
        list(make_runs([replace(SPREAD, target=1.0)], SYSTEMS, 1, tmp_path, None))


def test_a_run_of_actorq_has_the_returns_of_its_last_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def evaluated(directory: Path, episodes: int, variables: Any, flags: Sequence[str]) -> Any:
        given.append((directory, episodes, bool(variables), tuple(flags)))
        return Confirmation(150.0, episodes, "int8"), {"north": 40.0}

    def run(task: AgentsTask, seed: int, folder: Path) -> dict[str, Any]:
        (folder / "run").mkdir(parents=True)
        (folder / "run" / "summary.json").write_text('{"transitions_by_scheme": {"int8": 5}}')
        return {"reached": True, "flags": task.flags}

    monkeypatch.setattr(systems, "run_actorq", run)
    monkeypatch.setattr(systems, "confirm_agents", evaluated)
    made = run_system(JOINT, DOORS, 1, tmp_path / "one", None)
    assert made["flags"][-1] == "--agents.critic=joint"
    assert (made["confirmed"]["mean_return"], made["agent_returns"]) == (150.0, {"north": 40.0})
    assert made["transitions_by_scheme"] == {"int8": 5}
    run_system(ACTORQ, SPREAD, 1, tmp_path / "two", None)
    assert given == [
        (tmp_path / "one" / "run", systems.CONFIRMED, True, ("--allow-modules", "benchmarks.environments.doors")),
        (tmp_path / "two" / "run", systems.CONFIRMED, False, ()),
    ]


def test_another_librarys_run_gets_settings_and_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    def run(system: str, task: AgentsTask, folder: Path, command: Sequence[str], asked: dict[str, Any]) -> Any:
        found.update(asked, command=command)
        return {}

    monkeypatch.setattr(systems, "run_peer", run)
    monkeypatch.setattr(systems, "python_of", lambda peer, folder: folder / peer)
    run_system(STABLE_BASELINES, SPREAD, 2, tmp_path / "run", tmp_path)
    assert found["command"][0].endswith("stable-baselines3-agents")
    assert arguments(found["settings"])["gamma"] == 0.95
    run_system(RLLIB, DOORS, 2, tmp_path / "run", tmp_path)
    assert found["command"] == (str(tmp_path / "rllib-agents"), "-m", "benchmarks.libraries.peer_runs.rllib_agents")
    assert (found["seed"], found["lives"], found["episodes"]) == (2, DOORS.lives, DOORS.episodes)
    assert training(found["settings"])["gamma"] == 0.9
    assert settings_of(RLLIB, DOORS)["pins"] == pins("rllib-agents")


def run_of(task: AgentsTask, system: str, seed: int, seconds: float, scheme: str = "int8") -> dict[str, Any]:
    reached = seconds < task.limit_s
    found: dict[str, Any] = {
        "task": task.name,
        "system": system,
        "seed": seed,
        "reached": reached,
        "seconds": seconds,
        "environment_steps": 1_000,
        "steps_per_s": 100.0,
        "peak_memory_mb": 1.0,
        "conditions": CONDITIONS,
    }
    return found if system in OTHERS else {**found, "transitions_by_scheme": {scheme: 10}}


def runs_of(task: AgentsTask, system: str, *seconds: float, scheme: str = "int8") -> list[dict[str, Any]]:
    return [run_of(task, system, seed, each, scheme) for seed, each in enumerate(seconds, start=1)]


def test_every_seed_must_reach_the_target_as_fast_as_the_other_library() -> None:
    limit = SPREAD.limit_s
    theirs = runs_of(SPREAD, RLLIB, 60.0, 50.0, limit)
    good = [*runs_of(SPREAD, ACTORQ, 30.0, 20.0, 60.0), *runs_of(SPREAD, JOINT, 60.0, 60.0, 60.0), *theirs]
    assert [(target.measured, target.met) for target in targets({"runs": good})] == [
        *((3, True), (2.0, True)),
        *((3, True), (1.0, True)),
        (6, True),
    ]
    for target in targets({"runs": good}):
        assert any(re.fullmatch(meaning.pattern, target.name) for meaning in MEANINGS), target.name
    bad = [
        *runs_of(SPREAD, ACTORQ, 30.0, limit, limit),
        *runs_of(SPREAD, JOINT, 61.0, 61.0, 61.0, scheme="fp32"),
        *theirs,
    ]
    assert [(target.measured, target.met) for target in targets({"runs": bad})] == [
        *((1, False), (0.0, False)),
        *((3, True), (60.0 / 61.0, False)),
        (3, False),
    ]


def test_each_other_library_has_a_ratio() -> None:
    seconds = dict(zip(SYSTEMS, (10.0, 20.0, 30.0, 40.0), strict=True))
    runs = [run for system, each in seconds.items() for run in runs_of(SPREAD, system, each, each, each)]
    ratios = [target.measured for target in targets({"runs": runs}) if "median seconds" in target.name]
    assert ratios == [3.0, 4.0, 1.5, 2.0]


def test_each_agent_is_a_row_of_one_vector_environment() -> None:
    pytest.importorskip("mpe2")
    rows = TeamRows(SPREAD.environment, 2, 5)
    again = TeamRows(SPREAD.environment, 1, 6)
    observations = rows.reset()
    assert observations.shape == (6, 18)
    # Environment n has the seed of the run plus n.
    np.testing.assert_array_equal(observations[3:], again.reset())
    for step in range(1, 26):
        actions = np.full(6, step % 5)
        before = observations
        observations, rewards, ends, infos = rows.step(actions)
        expected, expected_rewards, *_ = again.step(actions[3:])
        np.testing.assert_array_equal(rewards[3:], expected_rewards)
        assert ends.tolist() == [step == 25] * 6
        if step < 25:
            np.testing.assert_array_equal(observations[3:], expected)
            assert not any(infos)
    assert all(info["TimeLimit.truncated"] for info in infos)
    # The last observation of an episode follows the one before it, and the next episode begins elsewhere.
    last = np.stack([info["terminal_observation"] for info in infos])
    assert np.abs(last - before).max() < 0.6 < np.abs(observations - before).max()


def test_the_return_of_an_episode_is_the_sum_over_the_agents_of_a_team() -> None:
    pytest.importorskip("mpe2")
    rows, again = (TeamRows(SPREAD.environment, 2, 5) for _ in range(2))
    found = team_returns(rows, lambda _: STILL, 3)
    again.reset()
    rewards = np.sum([again.step(STILL)[1] for _ in range(25)], axis=0)
    assert found[:2] == pytest.approx([rewards[:3].sum(), rewards[3:].sum()], rel=1e-4)
    assert len(found) == 4


def test_the_page_shows_times_and_the_returns_of_each_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = {
        "confirmed": {"mean_return": 160.5, "episodes": 100, "scheme": "int8"},
        "agent_returns": {"north": 42.0, "east": 41.0},
    }
    ours = [{**run, **returns} for run in runs_of(DOORS, ACTORQ, 30.0, 20.0, 40.0)]
    found = {"runs": [*ours, *runs_of(DOORS, RLLIB, 60.0, DOORS.limit_s, DOORS.limit_s)]}
    monkeypatch.setattr(tables, "figures", lambda name: found)
    times = tables.agents_seconds().splitlines()
    assert "| Doors | actorq | 30 (20 to 40) | 3 of 3 | 1,000 | 100 |" in times
    limit = f"{DOORS.limit_s:g}"
    assert f"| Doors | rllib | at least {limit} (60 to {limit}) | 1 of 3 | 1,000 | 100 |" in times
    assert tables.agents_returns().splitlines()[2:] == ["| Doors | actorq | 160, 160, 160 | north 42, east 41 |"]


def test_fewer_than_three_seeds_give_no_verdict_and_without_the_library_there_is_no_ratio() -> None:
    found = targets({"runs": [run for system in OURS for run in runs_of(DOORS, system, 10.0, 20.0)]})
    assert len(found) == 3
    assert {target.refused for target in found} == {"fewer than 3 seeds give no verdict"}


def test_the_other_library_needs_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["agents"])
    with pytest.raises(SystemExit, match="--environments: expected a folder to install the other libraries in"):
        run_benchmark("", agents._flags, agents._measure)
