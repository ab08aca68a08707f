"""`actorq profile` from the command line, with the real services."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.builders.forked_commands import run

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 220.0


def profile(*flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return run("actorq_apps.cli.main", "profile", *flags, environment=environment, timeout=TIMEOUT_S)


def measure(function: str, *flags: str) -> None:
    """One measurement of a profile."""
    result = run("actorq.start", function, *flags, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr


def test_a_profile_reports_the_limit_and_settings_for_every_scheme(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    result = profile("--dqn.hidden-sizes", "16,16", "--cores", "3", "--seconds", "0.1", "--json", str(file))
    assert result.returncode == 0, result.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["cores"] == 3
    told = report["predictions"]
    acting = {each["scheme"] for each in told}
    assert "fp32" in acting
    assert acting | set(report["dropped"]) == {"fp32", "int8-weights", "int8", "int8-static", "int4"}
    # 8 environments per actor, a quarter of them and four times as many.
    assert {each["environments_per_actor"] for each in told} == {2, 8, 32}
    for each in told:
        assert each["here"]["steps_per_s"] > 0
        assert sum(each["here"]["cores"].values()) <= 3.001
        assert each["apart"]["actors"] >= 1
    assert report["settings"]["scheme"] in acting
    for text in ("Costs, CartPole-v1, dqn", "here: --scheme", "on Kubernetes:"):
        assert text in result.stdout


def test_an_on_policy_run_is_predicted_from_whole_rollouts(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    flags = (
        *("--algorithm", "ppo", "--environment", "Pendulum-v1", "--ppo.hidden-sizes", "16,16"),
        *("--ppo.rollout-size", "512", "--ppo.batch-size", "64", "--ppo.epochs", "2", "--actor.segment-length", "64"),
        *("--actors", "1", "--environments-per-actor", "4", "--seconds", "0.1"),
    )
    result = profile(*flags, "--json", str(file))
    assert result.returncode == 0, result.stderr
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["measured"]["learner"]["rollout"]["updates"] == 16
    # A rollout can hold a segment of this number of environments.
    assert {each["environments_per_actor"] for each in report["predictions"]} == {1, 4, 8}
    assert all(each["here"]["steps_per_s"] > 0 for each in report["predictions"])


def test_a_users_on_policy_algorithm_is_measured_with_its_own_rollouts(tmp_path: Path) -> None:
    flags = (
        *("--algorithm", "tests.user_modules.own_on_policy:Reinforce", "--actor.segment-length", "4"),
        *("--environments-per-actor", "4", "--folder", str(tmp_path), "--seconds", "0.1"),
    )
    measure("actor_service.profile:run", *flags, "--record")
    measure("learner_service.profile:run", *flags)
    figures = json.loads((tmp_path / "learner.json").read_text(encoding="utf-8"))
    rollout = figures["rollout"]
    # For 2 epochs. A reset is a step without a transition.
    assert (rollout["environment_steps"], rollout["updates"]) == (16, 2)
    assert 0 < rollout["transitions"] <= 16
    assert figures["update_s"] > 0


def test_a_policy_with_memory_is_measured_with_sequences_from_its_replay(tmp_path: Path) -> None:
    flags = (
        *("--algorithm", "dqn", "--memory", "gru", "--memory.units", "8", "--actor.segment-length", "8"),
        *("--actors", "1", "--environments-per-actor", "4", "--folder", str(tmp_path), "--seconds", "0.1"),
    )
    measure("actor_service.profile:run", *flags, "--record")
    measure("learner_service.profile:run", *flags)
    figures = json.loads((tmp_path / "learner.json").read_text(encoding="utf-8"))
    assert figures["rollout"] is None
    assert figures["batch_size"] == 640
    assert figures["update_s"] > 0


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--seconds", "soon"), "--seconds: .*'soon'"),
        (("--environment", "Nowhere-v0"), "Nowhere-v0"),
        (("--algorithm", "sac"), "sac .*continuous .*CartPole-v1"),
    ],
    ids=["seconds", "environment", "algorithm"],
)
def test_a_mistake_is_one_line(flags: tuple[str, ...], fact: str) -> None:
    result = profile(*flags)
    assert result.returncode == 2
    assert re.fullmatch(f"error: .*{fact}.*\n", result.stderr)
