"""Whole runs with several agents: they reach a target, tell the returns of each agent, and survive kills."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from team_environments import AGENTS, BEST, BEST_OF_ROLES, SHARED, codes_of, life_of

from actorq import load_policy
from actorq.domain.status import RunStatus
from actorq.rundirectory import RunDirectory
from actorq_apps.python.plot import plot_run
from learner_service.replay.storage.columns import VALID, open_columns
from learner_service.replay.storage.description import described, read_description
from learner_service.replay.storage.mapped_files import Machine, this_boot
from tests.integration.training_run import TrainingRun, actorq, process_id

ROOT = Path(__file__).parents[2]
MODULE = "team_environments"
QUIET = ("--no-energy.enabled",)


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("algorithm", "environment", "target"),
    # The runs with groups have the other algorithms.
    [("ppo", "Targets", 25.5), ("dqn", "Targets", 25.5), ("sac", "ContinuousTargets", 24.0)],
)
def test_agents_with_one_policy_reach_the_best_return(
    tmp_path: Path, algorithm: str, environment: str, target: float
) -> None:
    run = tmp_path / "run"
    ended = actorq(
        *("train", "--run-directory", str(run), "--environment", f"{MODULE}:{environment}", "--algorithm", algorithm),
        *("--target-return", str(target), "--max-seconds", "120", "--max-environment-steps", "300000", *QUIET),
        # Small networks, because several runs train at once.
        *("--sac.hidden-sizes", "64,64", "--sac.batch-size", "64"),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"agents that share the policy: 3: {', '.join(AGENTS)}" in ended.stdout
    summary = json.loads((run / "summary.json").read_text())
    returns = summary["evaluation"]["agent_returns"]
    assert list(returns) == list(AGENTS)
    assert target <= summary["evaluation"]["mean_return"] == pytest.approx(sum(returns.values()))
    assert summary["evaluation"]["mean_return"] <= BEST
    # Green takes part in seven of ten steps.
    assert returns["green"] <= 7
    assert list(summary["training_agent_returns"]) == list(AGENTS)
    assert list(summary["evaluations"][-1]["agent_returns"]) == list(AGENTS)
    if algorithm != "ppo":
        return
    assert "return of each agent: red " in ended.stdout
    told = actorq("evaluate", str(run), "--episodes", "7", "--allow-modules", MODULE)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(" steps") >= 7
    assert re.findall(r"^  (red|green|blue) mean \S+$", told.stdout, re.MULTILINE) == list(AGENTS)
    (axes,) = plot_run(RunDirectory(run), target).figure.axes
    assert [each.get_text() for each in axes.get_legend().get_texts()][:4] == ["team", *AGENTS]  # type: ignore[union-attr]
    assert actorq("verify", str(run)).returncode == 0


@pytest.mark.timeout(240)
def test_an_identity_lets_one_policy_act_differently_for_each_agent(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = actorq(
        *("train", "--run-directory", str(run), "--environment", f"{MODULE}:OwnNumber", "--agents.identity", "one-hot"),
        *("--algorithm", "ppo", "--target-return", "28", "--max-seconds", "120", *QUIET),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "agent (one of 3)" in ended.stdout


GROUPS = ("--policies.attackers", "red", "--policies.defenders", "green,blue")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("algorithm", "environment", "flags"),
    [
        *((name, "Roles", ()) for name in ("ppo", "dqn", "impala")),
        # Small networks, because the default ones of both groups need most of a minute on a busy machine.
        *(
            (name, "ContinuousRoles", (f"--{name}.hidden-sizes", "64,64", f"--{name}.batch-size", "64"))
            for name in ("sac", "td3")
        ),
    ],
)
def test_groups_reach_what_no_shared_policy_can(
    tmp_path: Path, algorithm: str, environment: str, flags: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    target = (SHARED + BEST_OF_ROLES) / 2
    ended = actorq(
        *("train", "--run-directory", str(run), "--environment", f"{MODULE}:{environment}", "--algorithm", algorithm),
        *("--target-return", str(target), "--max-seconds", "120", "--max-environment-steps", "300000", *GROUPS, *QUIET),
        *flags,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "groups of agents with a policy each: attackers: red; defenders: green, blue" in ended.stdout
    summary = json.loads((run / "summary.json").read_text())
    evaluation = summary["evaluation"]
    assert target <= evaluation["mean_return"] <= BEST_OF_ROLES
    assert list(evaluation["group_returns"]) == ["attackers", "defenders"]
    assert sum(evaluation["group_returns"].values()) == pytest.approx(evaluation["mean_return"])
    assert list(summary["training_group_returns"]) == ["attackers", "defenders"]
    assert [group["name"] for group in summary["fidelity"]["groups"]] == ["attackers", "defenders"]
    assert "return of each group: attackers " in ended.stdout
    if algorithm != "ppo":
        return
    told = actorq("evaluate", str(run), "--episodes", "5", "--allow-modules", MODULE)
    assert told.returncode == 0, told.stderr
    assert re.findall(r"^  group (\w+) mean \S+$", told.stdout, re.MULTILINE) == ["attackers", "defenders"]
    check_exports(tmp_path, run)
    (axes,) = plot_run(RunDirectory(run), target).figure.axes
    labels = [each.get_text() for each in axes.get_legend().get_texts()]  # type: ignore[union-attr]
    assert labels[:6] == ["team", *AGENTS, "group attackers", "group defenders"]
    assert actorq("verify", str(run)).returncode == 0
    other = ("--policies.attackers", "red,green", "--policies.defenders", "blue")
    refused = actorq("train", "--resume", "--run-directory", str(run), *other)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--resume: expected policies " in refused.stderr


def check_exports(folder: Path, run: Path) -> None:
    """The whole policy acts by the bits. The policy of one group acts as it does, without them."""
    whole, alone = folder / "whole.onnx", folder / "defenders.onnx"
    assert actorq("export", str(run), "--output", str(whole)).returncode == 0
    exported = actorq("export", str(run), "--output", str(alone), "--group", "defenders")
    assert exported.returncode == 0, exported.stderr
    described = json.loads(alone.with_suffix(".json").read_text())
    assert described["group"] == {"name": "defenders", "agents": ["green", "blue"]}
    assert "groups" not in described["environment"]
    assert described["environment"]["observations"]["shape"] == [4]
    assert described["evaluation"]["mean_return"] <= 20
    assert alone.stat().st_size < 0.75 * whole.stat().st_size
    policy, own = load_policy(whole), load_policy(alone)
    targets = np.eye(4, dtype=np.float32)
    expected = {"attackers": [0, 1, 2, 3], "defenders": [1, 2, 3, 0]}
    for group in policy.environment.groups:
        rows = np.zeros((4, 6), np.float32)
        rows[:, 2:], rows[:, group.bit] = targets, 1.0
        assert policy.predict(rows).tolist() == expected[group.name]
    assert own.predict(targets).tolist() == expected["defenders"]
    for name, text in (("other", "expected a group of"), ("", "expected a group of")):
        refused = actorq("export", str(run), "--output", str(folder / "x.onnx"), f"--group={name}")
        assert refused.returncode == 2
        assert f"--group: {text}" in refused.stderr
        assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "flags", "text"),
    [
        (
            "Roles",
            ("--policies.a", "red", "--policies.b", "green"),
            "expected each agent of team_environments:Roles in",
        ),
        ("Roles", ("--policies.a", "red", "--policies.b", "green,red,blue"), "expected each agent in one group"),
        ("Roles", ("--policies.a", "red,pink", "--policies.b", "green,blue"), "policies.a: expected agents of"),
        ("Roles", ("--policies.a", ",", "--policies.b", "red,green,blue"), "policies.a: expected at least one agent"),
        ("Alone", ("--policies.a", "red", "--policies.b", "green"), "expected an environment with several agents"),
        ("Roles", (*GROUPS, "--algorithm", "xqc"), "policies: expected an algorithm of"),
    ],
)
def test_groups_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, environment: str, flags: tuple[str, ...], text: str
) -> None:
    refused = actorq(
        *("train", "--run-directory", str(tmp_path / "run"), "--environment", f"{MODULE}:{environment}", *flags, *QUIET)
    )
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert text in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("critic", "environment"), [("joint", "Targets"), ("state", "WithState")])
def test_critics_may_see_the_whole_team(tmp_path: Path, critic: str, environment: str) -> None:
    run, policy = tmp_path / "run", tmp_path / "policy.onnx"
    ended = actorq(
        *("train", "--run-directory", str(run), "--environment", f"{MODULE}:{environment}", "--agents.critic", critic),
        *("--algorithm", "ppo", "--target-return", "25.5", "--max-seconds", "120", *QUIET),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "for critics only: a vector of " in ended.stdout
    exported = actorq("export", str(run), "--output", str(policy))
    assert exported.returncode == 0, exported.stderr
    described = json.loads(policy.with_suffix(".json").read_text())
    assert [each["name"] for each in described["environment"]["observations"]["leaves"]] == ["vector"]
    assert list(described["inputs"]) == ["observations/vector"]
    # The best action is the index of the target that an agent sees.
    found = load_policy(policy).predict(np.eye(4, dtype=np.float32))
    np.testing.assert_array_equal(found, range(4))
    evaluated = actorq("evaluate", str(run), "--episodes", "5", "--allow-modules", MODULE)
    assert evaluated.returncode == 0, evaluated.stderr


def test_an_algorithm_without_a_critic_refuses_a_joint_one_in_one_line(tmp_path: Path) -> None:
    refused = actorq(
        *("train", "--run-directory", str(tmp_path / "run"), "--environment", f"{MODULE}:Targets"),
        *("--algorithm", "dqn", "--agents.critic", "joint", *QUIET),
    )
    assert refused.returncode == 2
    assert "agents.critic joint: algorithm dqn has no critic apart from the policy" in refused.stderr
    assert "choose ppo or impala, or leave agents.critic out" in refused.stderr


@pytest.mark.timeout(240)
def test_agents_may_have_a_memory(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = actorq(
        *("train", "--run-directory", str(run), "--environment", f"{MODULE}:Targets", "--algorithm", "ppo"),
        *(
            "--memory",
            "gru",
            "--memory.units",
            "16",
            "--max-environment-steps",
            "6000",
            "--target-return",
            "28",
            *QUIET,
        ),
    )
    assert ended.returncode == 3, ended.stdout + ended.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert summary["updates"] > 10
    # Random actions have a quarter of the best return.
    assert summary["evaluation"]["mean_return"] > BEST / 4


def has_updated(updates: int, killed: set[int] | None = None) -> Callable[[RunStatus], bool]:
    """True once the processes that were not killed report, with this number of updates."""

    def holds(status: RunStatus) -> bool:
        lives = {process.name: process.pid for process in status.processes}
        here = all(name in lives and lives[name] not in (killed or ()) for name in ("learner", "actor-0", "actor-1"))
        return here and status.updates >= updates and bool(status.agent_returns)

    return holds


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("algorithm", "groups"), [("dqn", ()), ("ppo", GROUPS)], ids=str)
def test_kills_and_resumes_store_each_agents_steps_exactly_once(
    tmp_path: Path, algorithm: str, groups: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    run = TrainingRun.start(
        *(folder, "--environment", f"{MODULE}:Coded", "--algorithm", algorithm, "--actors", "2"),
        *("--target-return", "500", *groups),
        *("--max-environment-steps", "10000000", "--replay.capacity", "400000", "--checkpoint.period-s", "2", *QUIET),
    )
    status = run.until(has_updated(40))
    assert set(status.agent_returns) == set(AGENTS)
    assert len(status.groups) == (2 if groups else 0)
    killed = {process_id(status, "learner")}
    os.kill(process_id(status, "learner"), signal.SIGKILL)
    status = run.until(has_updated(status.updates + 20, killed))
    killed.add(process_id(status, "actor-0"))
    os.kill(process_id(status, "actor-0"), signal.SIGKILL)
    status = run.until(has_updated(status.updates + 20, killed))
    steps = status.environment_steps
    run.signal(signal.SIGTERM)
    assert run.finish()[0] == 143
    budget = str(steps + 2_000)
    again = actorq("train", "--resume", "--run-directory", str(folder), "--max-environment-steps", budget)
    assert again.returncode == 3, again.stdout + again.stderr
    assert run.summary()["environment_steps"] >= steps + 2_000

    codes = stored_codes(folder)
    counts = Counter(map(tuple, codes.tolist()))
    assert max(counts.values()) == 1
    # Exactly the agents that take part in a step have a row.
    seen: dict[tuple[int, int, int], set[int]] = {}
    for agent, *rest in counts:
        instance, episode, step = rest
        seen.setdefault((instance, episode, step), set()).add(agent)
    for (_, _, step), agents in seen.items():
        assert agents == {agent for agent in range(3) if life_of(agent, step)}
    assert len(seen) == run.summary()["environment_steps"]
    # No instance has a gap: what an actor has sent is stored from its first step on.
    for instance in {each for each, _, _ in seen}:
        places = sorted(12 * episode + step for each, episode, step in seen if each == instance)
        assert places == list(range(places[0], places[0] + len(places)))


def stored_codes(folder: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The codes of all stored transitions, int64[B, 4]."""
    directory = folder / "replay"
    spec, capacity, further, _ = described(read_description(directory))
    columns, _ = open_columns(directory, spec, capacity, further, Machine(this_boot(), read_only=True))
    # The bits of groups precede the codes.
    codes = codes_of(columns.observations[columns.flags & VALID != 0][:, -4:].astype(np.float32))
    columns.close()
    return codes
