"""Runs of trials on this machine: what is read from their folders, and which trials start no process."""

import queue
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from actorq import load_policy
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.statefiles.documents import write_document
from actorq_apps.sweep.processes import FOLDERS, Processes
from actorq_apps.sweep.space import changes_tree
from actorq_apps.sweep.trials import Progress, RunEnd, Trial
from tests.builders.stored_policies import stored_run
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.ruined_policies import DEEP, INNER, dead_observations, deep_parameters

TRIAL = Trial(4, {"dqn.learning_rate": 0.001})


def config_of(changes: Mapping[str, Any]) -> RunConfig:
    return settings.build(RunConfig, changes_tree(changes))


@pytest.fixture
def runs(tmp_path: Path) -> Processes:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    return Processes(tmp_path, "a1b2c3", config_of, queue.SimpleQueue(), lock=0)


def test_a_finished_run_stays_as_it_is_and_ends_with_the_evaluation_that_solved_it(runs: Processes) -> None:
    runs.run(TRIAL).root.mkdir()
    points = [{"environment_steps": 100, "mean_return": 500.0}, {"environment_steps": 200, "mean_return": 95.0}]
    summary = {"state": "solved", "environment_steps": 200, "wall_clock_s": 3.0, "evaluations": points}
    write_document(runs.run(TRIAL).summary, {**summary, "evaluation": {"mean_return": 500.0}})
    runs.start(TRIAL)
    curve = ((100, 500.0), (200, 95.0), (200, 500.0))
    assert runs.progress(TRIAL) == Progress(curve, 200, 3.0, RunEnd.SOLVED)
    assert not list((runs.run(TRIAL).root.parents[1] / "configs").iterdir())


def test_an_invalid_combination_of_values_fails_without_a_process(runs: Processes) -> None:
    trial = Trial(0, {"replay.min_size": 4000, "replay.capacity": 5000})
    runs.start(trial)
    progress = runs.progress(trial)
    assert progress.end is RunEnd.FAILED
    assert re.search(r"replay\.capacity .*replay\.min_size.*4000.* 5000", progress.reason)
    assert not runs.run(trial).root.exists()


def test_exports_only_a_policy_that_passed_the_gate(runs: Processes, tmp_path: Path) -> None:
    ruined = checkpoint(
        DEEP,
        1,
        parameters=deep_parameters(ruined=INNER),
        calibration=dead_observations(),
        graph_digest=DEEP.digest,
    )
    stored_run(runs.run(TRIAL).root, DEEP, [ruined])
    best = tmp_path / "best"
    best.mkdir()
    (best / "policy.onnx").write_text("of an earlier best run")
    (best / "notes").mkdir()
    assert runs.keep_best(TRIAL, best).endswith(str(best / "policy.onnx"))
    assert load_policy(best / "policy.onnx").scheme == "fp32"
    # A user's folder or file stays.
    assert {path.name for path in best.iterdir()} == {"config.yaml", "notes", "policy.json", "policy.onnx"}


def test_without_the_folder_of_the_best_run_its_earlier_export_stays(runs: Processes, tmp_path: Path) -> None:
    best = tmp_path / "best"
    best.mkdir()
    (best / "policy.onnx").write_text("exported before")
    assert re.search(f"{runs.run(TRIAL).root} .*{best} ", runs.keep_best(TRIAL, best))
    assert (best / "policy.onnx").read_text() == "exported before"


def test_trials_share_no_folder_of_object_storage(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    storage = f"file://{tmp_path}/storage"

    def stored(changes: Mapping[str, Any]) -> RunConfig:
        return config_of({"checkpoint.object_storage": storage, "policy_export.url": storage, **changes})

    runs = Processes(tmp_path, "a1b2c3", stored, queue.SimpleQueue(), lock=0)
    try:
        runs.start(TRIAL)
        config = settings.build(RunConfig, settings.from_file(tmp_path / "configs" / "trial-004.yaml"))
    finally:
        runs.interrupt()
    assert config.checkpoint.object_storage == config.policy_export.url == f"{storage}/a1b2c3-004"
