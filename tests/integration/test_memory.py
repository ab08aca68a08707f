"""Whole runs of policies with memory: they train, evaluate, resume and refuse other states."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from actorq import load_policy
from tests.integration.training_run import ENDLESS, TrainingRun, actorq, trained

ROOT = Path(__file__).parents[2]
WITHOUT_VELOCITIES = ("--environment-wrappers", "hidden_velocities:WithoutVelocities")
SHORT = ("--max-environment-steps", "4000", "--target-return", "501", "--no-energy.enabled")


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("algorithm", "kind"), [("ppo", "gru"), ("impala", "lstm"), ("dqn", "gru")])
def test_a_run_trains_and_evaluates_a_policy_with_memory(tmp_path: Path, algorithm: str, kind: str) -> None:
    memory = ("--algorithm", algorithm, "--memory", kind, "--memory.units", "32")
    run = TrainingRun.start(tmp_path / "run", *memory, *WITHOUT_VELOCITIES, *SHORT)
    code, printed = run.finish()
    assert code == 3, printed
    summary = run.summary()
    assert summary["updates"] > 5
    assert summary["evaluation"]["scheme"] == "int8"
    # The newest evaluations know pushes from the side where the pole falls.
    assert summary["evaluation"]["mean_return"] > 9
    evaluated = actorq("evaluate", str(tmp_path / "run"), "--episodes", "5", "--allow-modules", "hidden_velocities")
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.count(" steps") >= 5
    assert "drift of the state" in evaluated.stdout
    # The newest versions were judged on stored sequences.
    report = summary["fidelity"]["sequences"]
    assert report[0]["steps"] == 1
    assert report[-1]["steps"] > 1
    assert all(each["state_drift"] <= 0.02 for each in report)
    policy = load_policy(tmp_path / "run")
    observation = np.array([0.1, 0.05], np.float32)
    assert {int(policy.predict(observation)) for _ in range(5)} <= {0, 1}
    policy.reset()
    assert actorq("verify", str(tmp_path / "run")).returncode == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_a_policy_with_memory_has_continuous_actions(tmp_path: Path, algorithm: str) -> None:
    run = TrainingRun.start(
        tmp_path / "run",
        *("--environment", "Pendulum-v1", "--algorithm", algorithm, "--memory", "gru", "--memory.units", "16"),
        *(f"--{algorithm}.hidden-sizes", "16,16", "--evaluation.period-updates", "100"),
        *("--max-environment-steps", "1000", "--target-return", "1", "--no-energy.enabled"),
    )
    code, printed = run.finish()
    assert code == 3, printed
    summary = run.summary()
    assert summary["updates"] > 100
    assert summary["evaluation"]["scheme"] == "int8"
    # The gate judged the versions on sequences from the replay.
    report = summary["fidelity"]["sequences"]
    assert report[-1]["steps"] > 8
    assert all(each["state_drift"] <= 0.02 for each in report)
    assert actorq("evaluate", str(tmp_path / "run"), "--episodes", "2").returncode == 0


@pytest.mark.timeout(240)
def test_updates_of_a_policy_with_memory_use_its_quantized_cell(tmp_path: Path) -> None:
    run = TrainingRun.start(
        tmp_path / "run",
        *("--algorithm", "ppo", "--memory", "gru", "--memory.units", "32", "--learner.quantization-aware-after", "0.0"),
        *WITHOUT_VELOCITIES,
        # Rounded updates through time are slow.
        *("--ppo.epochs", "2", "--max-environment-steps", "2000", "--target-return", "501", "--no-energy.enabled"),
    )
    code, printed = run.finish()
    assert code == 3, printed
    summary = run.summary()
    since = summary["quantization_aware_since"]
    assert since is not None
    assert summary["updates"] > since + 5
    log = (run.directory / "logs" / "learner.log").read_text()
    assert re.search("training follows int8: .*memory.input, memory.recurrent", log)
    # The gate judged the trained versions on sequences.
    report = summary["fidelity"]["sequences"]
    assert report[-1]["steps"] > 1
    assert all(each["state_drift"] <= 0.02 for each in report)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_interrupted_run_resumes_with_its_memory(tmp_path: Path, algorithm: str) -> None:
    memory = ("--algorithm", algorithm, "--memory", "gru", "--memory.units", "16", "--actors", "2")
    run = TrainingRun.start(tmp_path / "run", *memory, *WITHOUT_VELOCITIES, *ENDLESS)
    status = run.until(trained(60))
    run.signal(signal.SIGTERM)
    assert run.finish()[0] == 143
    other = actorq("train", "--resume", "--run-directory", str(tmp_path / "run"), "--memory.units", "32")
    assert other.returncode == 2
    assert "expected memory.units" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1
    resumed = TrainingRun.start(tmp_path / "run", "--resume")
    again = resumed.until(trained(status.updates + 20))
    assert again.run_id == status.run_id
    assert again.environment_steps > status.environment_steps
    resumed.signal(signal.SIGTERM)
    assert resumed.finish()[0] == 143


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--algorithm", "d4pg", "--memory", "gru"), "expected an algorithm with memory"),
        (("--algorithm", "xqc", "--memory", "lstm"), "expected an algorithm with memory"),
        (("--algorithm", "own_on_policy:Reinforce", "--memory", "gru"), "has no memory"),
        (("--algorithm", "own_algorithms:LinearQ", "--memory", "gru"), "has no memory"),
        (("--algorithm", "ppo", "--memory", "rnn"), "expected one of none, gru, lstm"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_any_service_starts(
    flags: tuple[str, ...], fact: str, tmp_path: Path
) -> None:
    result = actorq("train", *flags, "--run-directory", "run", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert fact in result.stderr
    assert list(tmp_path.iterdir()) == []
