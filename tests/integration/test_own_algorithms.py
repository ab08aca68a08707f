"""Whole runs of users' algorithms."""

import os
from pathlib import Path

import numpy as np
import pytest

from actorq import load_policy
from tests.integration.training_run import TrainingRun, actorq

ROOT = Path(__file__).parents[2]
# The best return is 10. Without memory, the mean return is at most 1.
SIGNS = ("--environment", "remembered_signs:FirstSign", "--target-return", "9", "--max-environment-steps", "20000")


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))


@pytest.mark.timeout(240)
def test_an_own_algorithm_with_an_own_cell_solves_a_task_that_needs_memory(tmp_path: Path) -> None:
    run = TrainingRun.start(
        tmp_path / "run",
        *("--algorithm", "own_on_policy:RecurrentReinforce", "--memory", "gru", "--memory.units", "16", *SIGNS),
        *("--algorithm-args", "rollout_size=256,epochs=4,learning_rate=1", "--evaluation.period-updates", "40"),
        "--no-energy.enabled",
    )
    code, printed = run.finish()
    assert code == 0, printed
    summary = run.summary()
    assert summary["evaluation"]["scheme"] == "int8"
    # The learner and the actors agree on the probabilities of actions, and therefore on the states before them.
    assert summary["rollout_queue"]["mismatch"] < 0.001
    assert {each["name"] for each in summary["fidelity"]["layers"] if not each["reason"]} == {"of_state"}
    report = summary["fidelity"]["sequences"]
    assert report[-1]["steps"] > 1
    assert all(each["state_drift"] <= 0.02 for each in report)
    policy = load_policy(tmp_path / "run")
    assert policy.has_memory
    for sign, wanted in ((-1.0, 0), (1.0, 1)):
        policy.reset()
        shown = np.array([sign, *[0.0] * 9], np.float32)
        assert [int(policy.predict(observation)) for observation in shown[:, None]] == [wanted] * 10
    evaluated = actorq("evaluate", str(tmp_path / "run"), "--episodes", "5", "--allow-modules", "remembered_signs")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "drift of the state" in evaluated.stdout
