"""Runs the examples, and checks that each file is on the page of examples."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml

from actorq.domain.policy import Checkpoint
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq_apps.operator.resource.training_run import TrainingRun as Described
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from tests.builders.stored_policies import stored_run
from tests.integration.training_run import TrainingRun, actorq, trained
from tests.learner_service.algorithms.algorithm_parts import make, random_batch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CARTPOLE = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), (2,))
PENDULUM = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), ArraySpec((1,), "float32", (-2.0,), (2.0,)), ())
# The test of each example, here or elsewhere.
TESTED = {
    "README.md": __file__,
    "act.py": __file__,
    "act_numpy.py": __file__,
    "courier.py": __file__,
    "hover": "tests/integration/test_example_package.py",
    "quantize_torch.py": __file__,
    "simulator": "tests/integration/test_external.py",
    "slurm": "tests/integration/test_several_machines.py",
    "sweep": __file__,
    "trainingrun": "tests/cluster/operator_install.py",
    "watch.py": __file__,
}


def python(example: str, *arguments: str, cwd: Path) -> str:
    """Run an example to its end, and return its output."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def exported(folder: Path, algorithm: str, spec: EnvironmentSpec, *flags: str) -> Path:
    """The file of an untrained policy, written by `actorq export`."""
    made = make(algorithm, spec)
    graph = export_policy_graph(made.policy, spec, made.takes_noise)
    rows = random_batch(np.random.default_rng(0), spec, 64).observations
    calibration = calibration_batch(rows, spec, made.takes_noise, seed=0)
    checkpoint = Checkpoint(1, 10, graph.digest, snapshot_parameters(made.policy), calibration, 0.0)
    run = folder / f"run-{algorithm}"
    stored_run(run, graph, [checkpoint], spec=spec, environment=spec.environment_id, algorithm=algorithm)
    file = folder / f"{algorithm}.onnx"
    result = actorq("export", str(run), "-o", str(file), *flags)
    assert result.returncode == 0, result.stderr
    return file


def test_each_example_is_on_the_page_has_a_test_and_is_short() -> None:
    found = {each.name for each in EXAMPLES.iterdir() if each.name not in ("__pycache__", "ruff.toml")}
    assert found == TESTED.keys()
    page, index = (file.read_text("utf-8") for file in (ROOT / "docs" / "examples.md", EXAMPLES / "README.md"))
    for name, test in TESTED.items():
        assert name in page or name == "README.md"
        assert name in index or name == "README.md"
        assert name.split(".")[0] in (ROOT / test).read_text("utf-8")
    assert [file.name for file in EXAMPLES.glob("*.py") if len(file.read_text("utf-8").splitlines()) > 64] == []


def test_a_policy_of_pytorch_is_quantized(tmp_path: Path) -> None:
    printed = python("quantize_torch.py", cwd=tmp_path)
    before, after = (tmp_path / "quantized" / name for name in ("policy.onnx", "policy-int8.onnx"))
    assert after.stat().st_size * 3 < before.stat().st_size
    assert f"{after.stat().st_size:,} after" in printed
    assert float(printed.split("difference of an action: ")[1].split()[0]) < 0.1


@pytest.mark.parametrize(("algorithm", "spec"), [("dqn", CARTPOLE), ("sac", PENDULUM)], ids=["dqn", "sac"])
def test_an_exported_policy_acts_without_actorq(tmp_path: Path, algorithm: str, spec: EnvironmentSpec) -> None:
    file = exported(tmp_path, algorithm, spec)
    assert "import actorq" not in (EXAMPLES / "act.py").read_text("utf-8")
    assert "policy v1 int8 returned" in python("act.py", str(file), cwd=tmp_path)


def test_numpy_and_onnx_runtime_agree(tmp_path: Path) -> None:
    file = exported(tmp_path, "dqn", CARTPOLE, "--scheme", "fp32", "--form", "standard")
    printed = python("act_numpy.py", str(file), cwd=tmp_path)
    rows = np.array([[0.0, 0.1, 0.0, -0.1]], np.float32)
    (expected,) = onnxruntime.InferenceSession(str(file)).run(None, {"observations": rows})
    found = np.fromstring(printed.strip().strip("[]"), sep=" ")
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-6)


def test_a_run_is_watched_and_stopped_once_it_is_good_enough(tmp_path: Path) -> None:
    endless = ("--target-return", "1000", "--max-environment-steps", "10000000", "--evaluation.episodes", "2")
    run = TrainingRun.start(tmp_path / "run", *endless, "--no-energy.enabled")
    try:
        run.until(trained(10))
        printed = python("watch.py", str(run.directory), "15", cwd=tmp_path)
        code, output = run.finish()
    finally:
        run.process.kill()
    assert code == 4, output
    assert "best.onnx has its policy" in printed
    session = onnxruntime.InferenceSession(str(tmp_path / "best.onnx"))
    assert session.run(None, {session.get_inputs()[0].name: np.zeros((1, 4), np.float32)})[0].shape == (1, 2)


def test_an_own_environment_with_a_mask_is_checked_and_solved(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "courier.py", tmp_path)
    checked = actorq("check", "courier:Courier-v0", cwd=tmp_path)
    assert "a mask of 4 choices" in checked.stdout, checked.stderr
    assert "warning" not in checked.stdout
    run = ("train", "--environment", "courier:Courier-v0", "--run-directory", str(tmp_path / "run"))
    trained_run = actorq(*run, "--no-energy.enabled", cwd=tmp_path)
    assert trained_run.returncode == 0, trained_run.stdout + trained_run.stderr


def test_the_operator_accepts_the_training_run() -> None:
    manifest = yaml.safe_load((EXAMPLES / "trainingrun" / "cartpole.yaml").read_text("utf-8"))
    run = Described.of(manifest)
    assert (run.name, run.spec.environment, run.spec.settings()["seed"]) == ("cartpole", "CartPole-v1", 1)


def test_a_sweep_searches_the_settings_of_its_file(tmp_path: Path) -> None:
    files = (
        "--config",
        str(EXAMPLES / "sweep" / "task.yaml"),
        "--search-file",
        str(EXAMPLES / "sweep" / "search.yaml"),
    )
    short = ("--trials", "2", "--max-environment-steps", "1500", "--evaluation.episodes", "2")
    result = actorq("sweep", "--directory", str(tmp_path / "swept"), *files, *short)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "swept" / "best" / "config.yaml").is_file()
