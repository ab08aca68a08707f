"""The end of a run on a real socket, its summary, and the start of the next learner."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from actorq.domain.trajectory import Episode
from actorq.errors import UserError
from actorq.process import EXIT_BUDGET_ENDED, EXIT_OK, EXIT_STOPPED
from actorq.v1 import learner_pb2
from learner_service.process import LearnerService, LearnerSettings
from learner_service.replay import ReplayStore
from tests.learner_service.learner_parts import SPEC, config, evaluation, segment
from tests.learner_service.learner_servers import DEADLINE_S, Running, actor, joined, running_learner, running_quantizer


@contextmanager
def solvable_run(directory: Path, resume: bool = False, **changes: Any) -> Iterator[tuple[Running, LearnerClient]]:
    with (
        running_quantizer(directory / "store") as quantizer,
        running_learner(config(target_return=100.0, **changes), directory / "run", quantizer, resume) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        yield running, client


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunState, int]:
    """A run that an evaluation has ended: its directory, its last watched state and its exit code."""
    directory = tmp_path_factory.mktemp("solved")
    with solvable_run(directory) as (running, client):
        worker = joined(client, "actor-0")
        worker.await_credit(1)
        worker.send_segment(segment(1, episodes=(Episode(51.0, 51, 0),)))
        worker.send_segments(range(2, 9))
        next(status for status in client.watch(0.05) if status.updates and status.emitted)
        judge = joined(client, "judge", role="evaluator")
        judge.send_evaluation(evaluation(1, 1, 50.0, 70.0))
        judge.await_acknowledged(1)
        status = client.status()
        assert status.state is RunState.TRAINING
        assert status.evaluation is not None
        assert status.evaluation.mean_return == 60.0
        judge.send_evaluation(evaluation(2, 1, 150.0, 90.0))
        for stream in (worker, judge):
            stream.await_directive(learner_pb2.DIRECTIVE_STOP)
        *_, last = client.watch(0.05)
        for stream in (worker, judge):
            stream.close()
        return directory, last.state, running.exit_code.result(DEADLINE_S)


def test_an_evaluation_that_reaches_the_target_ends_the_run(solved: tuple[Path, RunState, int]) -> None:
    directory, state, exit_code = solved
    assert (state, exit_code) == (RunState.SOLVED, EXIT_OK)
    assert list((directory / "run" / "checkpoints").iterdir())
    assert list((directory / "run" / "events").iterdir())


def test_the_summary_describes_the_run(solved: tuple[Path, RunState, int]) -> None:
    summary = json.loads((solved[0] / "run" / "summary.json").read_text())
    assert summary["solved"] is True
    evaluation = {"mean_return": 120.0, "success_rate": None, "episodes": 2, "scheme": "int8", "policy_version": 1}
    assert summary["evaluation"] == evaluation
    assert summary["environment_steps"] == 64
    assert summary["samples_per_insert"] == pytest.approx(summary["updates"] * 8 / 64, abs=1e-3)
    for name in ("wall_clock_s", "updates", "policy_versions"):
        assert summary[name] > 0, name
    assert 0 < summary["first_transition_s"] <= summary["last_transition_s"] <= summary["wall_clock_s"]
    # The learner's process is that of these tests, which may have begun long ago.
    for rate, count in (("environment_steps_per_s", 64), ("updates_per_s", summary["updates"])):
        assert summary[rate] == pytest.approx(count / summary["wall_clock_s"], abs=0.06)
    assert summary["staleness"].keys() == {"p50", "p99"}
    # 4 observations, 8 units, and for each of 2 actions and the state a value; both networks choose, one is trained.
    action = 7 * 8 + 15 * 3
    assert summary["flops"]["action"] == {"flops": action, "dense": action, "ratio": 1.0}
    assert summary["flops"]["update"]["flops"] == 8 * 5 * action
    assert summary["flops"]["training"] == summary["updates"] * 8 * 5 * action
    assert summary["policy_bytes"]["emitted"] > 0
    assert summary["policy_bytes"]["fp32"] > 4 * 40
    assert summary["peak_memory_mb"]["learner"] > 10
    # No meter has reported: that is no energy of 0.
    assert summary["energy"].pop("method").startswith("not measured")
    assert summary["energy"] == {"kwh": None, "co2_kg": None, "per_service": {}}
    assert [each["mean_return"] for each in summary["evaluations"]] == [60.0, 120.0]


def test_an_implausible_evaluation_does_not_end_the_run(tmp_path: Path) -> None:
    with (
        solvable_run(tmp_path) as (running, client),
        actor(client, "judge", role="evaluator") as judge,
        actor(client, "actor-0") as worker,
    ):
        judge.send_evaluation(evaluation(1, 1, 150.0))
        judge.await_acknowledged(1)
        assert client.status().flagged_evaluation.startswith("version 1, by judge: ")
        worker.await_credit(1)
        worker.send_segment(segment(1, episodes=(Episode(51.0, 51, 0),)))
        worker.await_acknowledged(1)
        judge.send_evaluation(evaluation(2, 1, 9_000.0))
        judge.await_acknowledged(2)
        status = client.status()
        assert re.search(r"9,000\.0 .*200\.0", status.flagged_evaluation)
        assert status.state is not RunState.STOPPING
        judge.send_evaluation(evaluation(3, 1, 60.0))
        judge.await_acknowledged(3)
        assert client.status().flagged_evaluation == ""
        judge.send_evaluation(evaluation(4, 1, 110.0))
        worker.await_directive(learner_pb2.DIRECTIVE_STOP)
        judge.await_directive(learner_pb2.DIRECTIVE_STOP)
        worker.close()
        judge.close()
        assert running.exit_code.result(DEADLINE_S) == EXIT_OK


def test_a_resumed_run_continues_at_its_checkpoint(solved: tuple[Path, RunState, int]) -> None:
    summary = json.loads((solved[0] / "run" / "summary.json").read_text())
    with solvable_run(solved[0], resume=True) as (running, client):
        status = next(status for status in client.watch(0.05) if status.policy_version > summary["policy_versions"])
        assert status.environment_steps == 64
        assert status.updates >= summary["updates"]
        assert status.elapsed_s > summary["wall_clock_s"]
        assert client.join("actor-0", 1, "actor", "test").resume_after_sequence == 8
        client.stop()
        assert running.exit_code.result(DEADLINE_S) == EXIT_STOPPED
    assert json.loads((solved[0] / "run" / "summary.json").read_text())["state"] == "stopped"


def refused_start(directory: Path, changed: RunConfig, resume: bool) -> str:
    """The reason against a start, which has written nothing."""
    before = {path: path.read_bytes() for path in (directory / "run").rglob("*") if path.is_file()}
    settings = LearnerSettings(run_directory=directory / "run", quantizer="127.0.0.1:1", resume=resume)
    with pytest.raises(UserError) as refused:
        LearnerService(changed, settings)
    assert "\n" not in str(refused.value)
    after = {path: path.read_bytes() for path in (directory / "run").rglob("*") if path.is_file()}
    assert {path.name for path in after if before.get(path) != after[path]} <= {"learner.lock"}
    return str(refused.value)


def test_a_checkpoint_of_another_environment_is_refused(solved: tuple[Path, RunState, int]) -> None:
    message = refused_start(solved[0], config(environment="Acrobot-v1"), resume=True)
    assert re.search("'CartPole-v1'.*'Acrobot-v1'.*--environment CartPole-v1", message)


def test_a_checkpoint_with_other_environment_arguments_is_refused(solved: tuple[Path, RunState, int]) -> None:
    message = refused_start(solved[0], config(environment_args={"sutton_barto_reward": True}), resume=True)
    assert re.search('no arguments.*"sutton_barto_reward": true', message)


def test_a_checkpoint_of_another_sparsity_is_refused(solved: tuple[Path, RunState, int]) -> None:
    message = refused_start(solved[0], config(sparsity={"method": "rigl"}), resume=True)
    assert re.search(r"sparsity\.method dense.*rigl.*--sparsity\.method dense", message)


def test_a_run_is_not_overwritten_by_accident(solved: tuple[Path, RunState, int]) -> None:
    assert "--resume" in refused_start(solved[0], config(), resume=False)


def test_a_run_ends_with_its_exit_code_when_no_file_of_its_end_can_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with solvable_run(tmp_path, policy_export={"url": f"file://{tmp_path}/exported"}) as (running, client):
        with actor(client, "judge", role="evaluator") as judge, actor(client, "actor-0") as worker:
            worker.await_credit(1)
            worker.send_segment(segment(1, episodes=(Episode(51.0, 51, 0),)))
            worker.send_segments(range(2, 9))
            next(status for status in client.watch(0.05) if status.emitted)
            # Nothing can be written to these paths, as on a full disk.
            (tmp_path / "exported" / "policy.onnx").mkdir()
            for name in ("summary.json", "outcome.json", "clock.json", "evaluations.count.json"):
                (tmp_path / "run" / f".{name}.partial").mkdir()
            # Of an earlier life.
            (tmp_path / "run" / "summary.json").write_text("{}")
            judge.send_evaluation(evaluation(1, 1, 150.0))
            judge.await_directive(learner_pb2.DIRECTIVE_STOP)
        assert running.exit_code.result(DEADLINE_S) == EXIT_OK
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert not [record for record in told if record.exc_info or "\n" in record.getMessage()]
    for text in (
        "summary.json cannot be written (Is a directory)",
        "outcome.json cannot be written (Is a directory)",
        "log of evaluations cannot be written (Is a directory)",
        "best policy",
    ):
        assert len([record for record in told if text in record.getMessage()]) == 1, text
    assert not (tmp_path / "run" / "summary.json").exists()
    # The replay is closed: another process may open it.
    ReplayStore.open(tmp_path / "run" / "replay", SPEC, 2_000).close()


def test_used_up_steps_end_the_run_after_its_last_policy_was_evaluated(tmp_path: Path) -> None:
    with solvable_run(tmp_path, max_environment_steps=80) as (running, client):
        with actor(client, "judge", role="evaluator") as judge, actor(client, "actor-0") as worker:
            worker.send_segments(range(1, 11))
            version = judge.await_directive(learner_pb2.DIRECTIVE_EVALUATE).evaluate_version
            judge.send_evaluation(evaluation(1, version, 12.0))
            worker.await_directive(learner_pb2.DIRECTIVE_STOP)
        assert running.exit_code.result(DEADLINE_S) == EXIT_BUDGET_ENDED
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["solved"], summary["state"]) == (False, "budget ended")
    assert summary["evaluation"]["policy_version"] == version
