"""Whole runs in environments with goals: int8 actors, hindsight by default, and a success rate as the target."""

import re
from pathlib import Path

import pytest

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.goals import HindsightColumns
from actorq.domain.spaces import EnvironmentSpec
from actorq.statefiles.documents import read_document
from benchmarks.environments.goals_coded import BITS
from learner_service.replay import ReplayStore
from tests.integration.training_run import TrainingRun, actorq

MODULE = "benchmarks.environments.goals_coded"
CODED = f"{MODULE}:"


def _run(folder: Path, environment: str, *flags: str) -> TrainingRun:
    limits = ("--max-seconds", "100", "--max-environment-steps", "10000000", "--no-energy.enabled")
    return TrainingRun.start(folder, "--environment", f"{CODED}{environment}", *limits, *flags)


def test_bit_flipping_is_solved_with_default_hindsight(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", "Bits-v0", "--target-success", "0.9")
    code, printed = run.finish()
    assert code == 0, printed
    assert "(target success 90%)" in printed
    summary = run.summary()
    assert summary["target_success"] == 0.9
    assert summary["target_return"] is None
    assert summary["evaluation"]["success_rate"] >= 0.9
    assert summary["evaluation"]["scheme"] == "int8"
    assert summary["evaluations"][-1]["success_rate"] >= 0.9
    # The default of dqn is longer.
    config = settings.build(RunConfig, settings.from_file(tmp_path / "run" / "config.yaml"))
    assert (config.dqn.n_step, config.hindsight.copies) == (1, 4)

    again = actorq("train", "--resume", "--run-directory", str(tmp_path / "run"))
    assert again.returncode == 2
    assert re.search(r"success rate of 90%", again.stderr)
    evaluated = actorq("evaluate", str(tmp_path / "run"), "--episodes", "20", "--allow-modules", MODULE)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "success in " in evaluated.stdout
    # A failed episode has no reward.
    assert evaluated.stdout.count("  failure") == evaluated.stdout.count(f"return -{BITS}.00  {BITS} steps  failure")


@pytest.mark.parametrize("algorithm", ["sac", "td3", "d4pg", "xqc"])
def test_algorithms_for_continuous_actions_learn_from_other_goals(tmp_path: Path, algorithm: str) -> None:
    run = _run(
        tmp_path / "run",
        *("Reach-v0", "--algorithm", algorithm, "--hindsight.copies", "2", "--replay.capacity", "20000"),
        *("--replay.min-size", "300", "--exploration.random-steps", "300", "--max-environment-steps", "1500"),
        *("--rate-limiter.samples-per-insert", "16", "--rate-limiter.error-buffer", "4096"),
    )
    code, printed = run.finish()
    assert code == 3, printed
    spec = EnvironmentSpec.from_json(read_document(tmp_path / "run" / "environment.json"))
    names = HindsightColumns(2)
    config = settings.build(RunConfig, settings.from_file(tmp_path / "run" / "config.yaml"))
    store = ReplayStore.open(tmp_path / "run" / "replay", spec, config.replay.capacity, names.names)
    rewards = store.further[names.rewards][store.flags & 1 != 0]
    # Few steps reach their own goal. Every episode reaches another goal at its end.
    assert (rewards == 0).mean() > 0.05 > (store.rewards[store.flags & 1 != 0] == 0).mean()
    store.close()
