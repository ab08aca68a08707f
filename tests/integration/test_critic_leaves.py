"""Whole runs whose critics see a part of the observations that their policies never see."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hidden_parts import BONUS, WITHOUT, Bonus

import actorq as package
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.leaves import CRITIC_VECTOR, VECTOR, packed_nbytes, views
from actorq.rundirectory import RunDirectory
from learner_service.algorithms import make_algorithm
from learner_service.training.checkpoint import Checkpoints
from tests.integration.training_run import ENDLESS, TrainingRun, actorq, trained

ROOT = Path(__file__).parents[2]
HIDDEN = ("--environment", "hidden_parts:Bonus", "--critic-leaves", "hidden/bonus")
# Small networks, which learn soon on a slow machine.
SAC = (
    *("--environment-args", "continuous=true", "--sac.hidden-sizes", "32,32", "--sac.batch-size", "64"),
    *("--sac.learning-rate", "0.003", "--sac.discount", "0.9", "--sac.temperature", "0.05"),
    *("--exploration.random-steps", "500", "--replay.min-size", "500"),
)
SEPARATED = ("--environment-wrappers", "hidden_parts:Separated", "--critic-leaves", "hidden")
SHORT = ("--max-environment-steps", "4000", "--target-return", "501", "--no-energy.enabled")
ALLOWED = ("--allow-modules", "hidden_parts")


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))


def algorithm_of(run: Path) -> Any:
    """The algorithm of the run's newest checkpoint."""
    directory = RunDirectory(run)
    config = settings.build(RunConfig, directory.config_tree())
    algorithm: Any = make_algorithm(config, directory.read_environment())
    state = Checkpoints(run / "checkpoints", keep=1).load_newest()
    assert state is not None
    algorithm.load_state(state.tensors)
    return algorithm


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("algorithm", "further"), [("ppo", ()), ("sac", SAC)])
def test_the_critic_of_a_run_knows_the_hidden_part_and_its_policy_does_not(
    tmp_path: Path, algorithm: str, further: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    flags = ("--algorithm", algorithm, "--seed", "1", "--normalize-observations", "--no-energy.enabled", *further)
    ended = actorq(
        *("train", "--run-directory", str(run), *HIDDEN, *flags, "--target-return", "17", "--max-seconds", "120")
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "for critics only" in ended.stdout
    # All versions of the policy have one input of observations.
    models = sorted((run / "policies").rglob("policy*.onnx"))
    assert models
    for file in models:
        inputs = {value.name for value in onnx.load(file).graph.input}
        assert inputs - {"noise"} == {"observations/vector"}
    learned = algorithm_of(run)
    leaves = learned._spec.leaves
    seen = np.zeros((2, packed_nbytes(leaves)), np.uint8)
    for leaf, values in ((VECTOR, (1.0, 1.0)), (CRITIC_VECTOR, (BONUS, -BONUS))):
        views(leaves, seen)[leaf][:, 0] = values
    critic, rows = learned.networks["critic"].network, torch.from_numpy(seen)
    with torch.no_grad():
        values = critic(rows, *((torch.ones((2, 1)),) if algorithm == "sac" else ())).reshape(-1, 2)
        outputs = learned.policy(rows)
    # The bonus of the next step has one sign, and that of the step after it the other one.
    assert float((values[:, 0] - values[:, 1]).mean()) > BONUS / 2
    first = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    torch.testing.assert_close(first[0], first[1], rtol=0, atol=0)
    # Neither an exported nor an evaluated policy needs the part.
    policy = package.load_policy(run)
    assert [leaf.name for leaf in policy.environment.leaves] == [VECTOR]
    actions = [np.asarray(policy.predict({VECTOR: np.array([bit], np.float32)})).item() for bit in (-1, 1)]
    assert actions[0] < 0.5 < actions[1] if algorithm == "ppo" else actions[0] < 0 < actions[1]
    assert np.asarray(policy.predict(np.array([1.0], np.float32))).item() == actions[1]
    exported = actorq("export", str(run), "-o", str(tmp_path / "policy.onnx"))
    assert exported.returncode == 0, exported.stderr
    assert package.load_policy(tmp_path / "policy.onnx").environment.leaves == policy.environment.leaves
    monkeypatch.setenv(WITHOUT, "yes")
    evaluated = actorq("evaluate", str(run), "--episodes", "4", *ALLOWED)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "over 4 episodes" in evaluated.stdout
    assert actorq("verify", str(run)).returncode == 0


@pytest.mark.timeout(240)
def test_a_resumed_run_keeps_its_critic_leaves_also_with_memory(tmp_path: Path) -> None:
    flags = ("--algorithm", "ppo", "--memory", "gru", "--memory.units", "16", "--actors", "2", *SEPARATED)
    run = TrainingRun.start(tmp_path / "run", *flags, *ENDLESS)
    status = run.until(trained(40))
    run.signal(signal.SIGTERM)
    assert run.finish()[0] == 143
    other = actorq("train", "--resume", "--run-directory", str(tmp_path / "run"), "--critic-leaves", "seen")
    assert (other.returncode, len(other.stderr.strip().splitlines())) == (2, 1), other.stderr
    assert "critic_leaves" in other.stderr
    resumed = TrainingRun.start(tmp_path / "run", "--resume")
    again = resumed.until(trained(status.updates + 10))
    assert again.environment_steps > status.environment_steps
    resumed.signal(signal.SIGTERM)
    assert resumed.finish()[0] == 143


def test_without_an_algorithm_one_with_a_critic_is_chosen(tmp_path: Path) -> None:
    run = TrainingRun.start(tmp_path / "run", *SEPARATED, *SHORT)
    code, printed = run.finish()
    assert code == 3, printed
    assert RunDirectory(tmp_path / "run").config_tree()["algorithm"] == "ppo"
    checked = actorq("check", *SEPARATED)
    assert checked.returncode == 0, checked.stderr
    assert "ppo unless you choose: ppo, impala;" in checked.stdout


def test_python_code_names_the_leaves_in_a_list(tmp_path: Path) -> None:
    class Own(Bonus):
        """Only this process has it."""

    limits: dict[str, Any] = {"max_environment_steps": 2000, "target_return": 501, "energy": {"enabled": False}}
    run = package.train(Own, critic_leaves=["hidden"], directory=tmp_path / "run", **limits)
    assert run.wait().mean_return is not None
    assert [leaf.name for leaf in run.policy().environment.leaves] == [VECTOR]
    assert len(run.evaluate(3).returns) == 3


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        ((*HIDDEN, "--algorithm", "dqn"), "algorithm dqn has no critic apart from the policy"),
        ((*HIDDEN, "--algorithm", "own_on_policy:Reinforce"), "has no critic apart from the policy"),
        ((*HIDDEN[:3], "hidden/speed"), "expected parts of an observation (bit, hidden/bonus), got 'hidden/speed'"),
        ((*HIDDEN[:3], "hidden,bit"), "at least one part for the policy"),
        (("--environment", "CartPole-v1", "--critic-leaves", "velocity"), "return a Dict"),
        (("--environment", "goal_environments:Line-v0", "--critic-leaves", "observation"), "has goals"),
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
