"""The whole system, from the command line: three real services train CartPole with int8 actors."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from actorq.domain.policy import SIGNED, UNSIGNED
from tests.builders.processors import INT8_HERE
from tests.integration.training_run import TrainingRun, actorq


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingRun, str]:
    """A run that has solved CartPole, and its output."""
    run = TrainingRun.start(tmp_path_factory.mktemp("runs") / "run", "--seed", "1")
    code, printed = run.finish()
    assert code == 0, printed
    return run, printed


def test_one_command_solves_cartpole_and_prints_the_run_directory_last(solved: tuple[TrainingRun, str]) -> None:
    run, printed = solved
    assert printed.strip().splitlines()[-1] == str(run.directory)
    summary = run.summary()
    assert summary["solved"] is True
    assert summary["evaluation"]["mean_return"] >= 475
    assert summary["evaluation"]["episodes"] == 20
    assert summary["environment_steps"] <= 100_000


def test_a_normal_run_logs_no_warning(solved: tuple[TrainingRun, str]) -> None:
    run, printed = solved
    logs = {file.name: file.read_text() for file in (run.directory / "logs").iterdir()}
    assert {"launcher.log", "learner.log", "quantizer.log", "actor-0.log", "evaluator.log"} <= logs.keys()
    faults = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|Traceback|Warning:")
    assert [(name, line) for name, text in logs.items() for line in text.splitlines() if faults.search(line)] == []
    assert not faults.search(printed)


def test_every_transition_came_from_an_int8_policy(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    summary = run.summary()
    assert summary["evaluation"]["scheme"] == "int8"
    assert summary["transitions_by_scheme"] == {"int8": summary["environment_steps"]}
    assert summary["policy_versions"] > 10


def test_the_actors_policy_computes_in_int8(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    models = sorted((run.directory / "policies").rglob(f"policy-{INT8_HERE}.onnx"))
    assert models
    model = onnx.load(models[-1])
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "DynamicQuantizeMatMul"]
    integers = {SIGNED: onnx.TensorProto.INT8, UNSIGNED: onnx.TensorProto.UINT8}[INT8_HERE.weight_encoding]
    assert nodes
    assert all(integers in map(weights.get, node.input) for node in nodes)


def test_the_summary_has_the_cost_of_the_run(solved: tuple[TrainingRun, str]) -> None:
    summary = solved[0].summary()
    assert {"learner", "quantizer", "actor-0", "actor-1", "evaluator"} <= set(summary["peak_memory_mb"])
    assert max(mb for name, mb in summary["peak_memory_mb"].items() if name.startswith("actor")) <= 200
    assert summary["policy_bytes"]["emitted"] < summary["policy_bytes"]["fp32"] / 2
    assert summary["samples_per_insert"] > 1
    assert summary["staleness"]["p99"] >= summary["staleness"]["p50"] >= 0
    assert summary["energy"]["method"]
    assert summary["activation_ms"] > 0


def test_the_run_directory_has_all_files(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    names = {path.name for path in run.directory.iterdir()}
    assert {"config.yaml", "summary.json", "events", "checkpoints", "policies", "logs", "replay"} <= names
    logs = {path.stem for path in (run.directory / "logs").iterdir()}
    assert {"learner", "quantizer", "actor-0", "actor-1", "evaluator"} <= logs


@pytest.mark.parametrize("scheme", ["int8", "fp32"])
def test_a_finished_run_is_evaluated_without_its_learner(solved: tuple[TrainingRun, str], scheme: str) -> None:
    run, _ = solved
    result = actorq("evaluate", str(run.directory), "--episodes", "10", "--scheme", scheme, "--seed", "7")
    assert result.returncode == 0, result.stderr
    assert scheme in result.stdout


def test_a_run_whose_configuration_is_damaged_is_evaluated_with_its_copy(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    config = run.directory / "config.yaml"
    whole = config.read_bytes()
    try:
        config.write_text("a: [")
        result = actorq("evaluate", str(run.directory), "--episodes", "1")
    finally:
        config.write_bytes(whole)
    assert result.returncode == 0, result.stderr
    assert "config.copy.yaml" in result.stderr


def test_a_corrupt_policy_is_refused_in_one_line(solved: tuple[TrainingRun, str], tmp_path: Path) -> None:
    run, _ = solved
    version = run.summary()["evaluation"]["policy_version"]
    (model,) = (run.directory / "policies").rglob(f"*{version:08d}*/policy-{INT8_HERE}.onnx")
    whole = model.read_bytes()
    try:
        model.write_bytes(whole[:-100] + bytes(100))
        result = actorq("evaluate", str(run.directory), "--version", str(version))
    finally:
        model.write_bytes(whole)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "sha256" in result.stderr


def test_an_existing_run_is_not_overwritten(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    before = {path: path.stat().st_mtime_ns for path in run.directory.rglob("*")}
    result = actorq("train", "--run-directory", str(run.directory))
    assert result.returncode == 2
    assert "--resume" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in run.directory.rglob("*")} == before


def test_resuming_with_another_environment_is_refused(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    config = (run.directory / "config.yaml").read_text()
    result = actorq("train", "--resume", "--run-directory", str(run.directory), "--environment", "Acrobot-v1")
    assert result.returncode == 2
    assert "CartPole-v1" in result.stderr
    assert "Acrobot-v1" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert (run.directory / "config.yaml").read_text() == config


def test_a_solved_run_does_not_resume_without_a_new_target(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    before = run.summary()
    result = actorq("train", "--resume", "--run-directory", str(run.directory))
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "--target-return" in result.stderr
    assert run.summary() == before


def test_a_run_resumes_from_its_end(solved: tuple[TrainingRun, str]) -> None:
    run, _ = solved
    before = run.summary()
    budget = before["environment_steps"] + 2_000
    again = TrainingRun.start(
        run.directory, "--resume", "--target-return", "501", "--max-environment-steps", str(budget)
    )
    code, printed = again.finish()
    assert code == 3, printed
    after = again.summary()
    assert after["run_id"] == before["run_id"]
    assert after["environment_steps"] >= budget
    assert after["updates"] > before["updates"]
    assert after["policy_versions"] > before["policy_versions"]
    assert after["wall_clock_s"] > before["wall_clock_s"]
    assert after["evaluations"][: len(before["evaluations"])] == before["evaluations"]
    json.dumps(after, allow_nan=False)


def test_the_installed_command_evaluates_an_environment_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "tall_poles.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Tall-v0', CartPoleEnv, max_episode_steps=50, reward_threshold=5.0)\n",
        encoding="utf-8",
    )
    command = str(Path(sys.executable).with_name("actorq"))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    trained = run("train", "tall_poles:Tall-v0", "--run-directory", "run", "--no-energy.enabled")
    assert trained.returncode == 0, trained.stderr
    (line,) = [line for line in trained.stdout.splitlines() if line.startswith("evaluate it: ")]
    # The line works as it is printed.
    evaluated = run(*shlex.split(line.removeprefix("evaluate it: actorq ")), "--episodes", "2")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "episode 2/2" in evaluated.stdout
