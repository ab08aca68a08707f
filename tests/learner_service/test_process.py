"""`python -m learner_service` from outside: its end, and its return after a SIGKILL."""

import json
import os
import random
import re
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from actorq.client import LearnerClient
from actorq.domain.status import Membership, RunState
from actorq.domain.trajectory import Role
from actorq.errors import UnavailableError
from actorq.process import EXIT_INTERRUPTED, EXIT_OK, EXIT_USER_ERROR
from actorq.statefiles.documents import write_twice
from actorq.transport.reconnect import Backoff, keep_connected
from actorq.v1 import learner_pb2
from learner_service.replay import ReplayStore
from tests.builders.service_process import ServiceProcess, service_process
from tests.learner_service.learner_parts import SPEC, config, evaluation
from tests.learner_service.learner_servers import DEADLINE_S, ActorStream
from tests.learner_service.mlflow_runs import mlflow_runs, mlflow_scalars
from tests.learner_service.run.test_preparation import PENDULUM


def learner_process(
    directory: Path, quantizer: str, resume: bool = False, **changes: Any
) -> AbstractContextManager[ServiceProcess]:
    """A learner on `directory / "run"`."""
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump(config(**changes).model_dump(mode="json", exclude_unset=True)))
    arguments = ["--config", str(path), "--run-directory", str(directory / "run"), "--quantizer", quantizer]
    return service_process("learner", *arguments, *(["--resume"] if resume else []))


@pytest.fixture
def quantizer(tmp_path: Path) -> Iterator[str]:
    with service_process("quantizer", "--store", str(tmp_path / "store")) as process:
        yield process.address
        process.terminate()
        assert process.end()[0] == EXIT_OK


def join(client: LearnerClient, name: str, role: Role) -> tuple[Membership, list[str]]:
    """Join as an actor, which retries until the learner is reachable. Also returns the errors in between."""
    memberships: list[Membership] = []
    refusals: list[str] = []

    def once(connected: Callable[[], None]) -> None:
        try:
            memberships.append(client.join(name, 1, role, "test"))
        except UnavailableError as error:
            refusals.append(str(error))
            raise

    keep_connected(once, threading.Event(), client.peer, random.Random(0), Backoff(0.01, 0.1))
    return memberships[0], refusals


def open_stream(client: LearnerClient, name: str) -> ActorStream:
    stream = ActorStream(client, name)
    stream.open(SPEC)
    return stream


def test_a_killed_learner_continues_with_all_acknowledged_data(tmp_path: Path, quantizer: str) -> None:
    with (
        learner_process(tmp_path, quantizer) as process,
        LearnerClient(process.address, deadline_s=DEADLINE_S) as client,
    ):
        first, _ = join(client, "actor-0", "actor")
        join(client, "judge", "evaluator")
        worker, judge = open_stream(client, "actor-0"), open_stream(client, "judge")
        worker.send_segments(range(1, 9))
        next(status for status in client.watch(0.05) if status.updates and status.emitted)
        client.save_checkpoint()
        # After the last checkpoint, and nevertheless kept.
        worker.send_segments(range(9, 11))
        judge.send_evaluation(evaluation(1, 1, 50.0))
        judge.await_acknowledged(1)
        process.kill()
        for stream in (worker, judge):
            assert stream.refusal().code() is grpc.StatusCode.UNAVAILABLE

    with (
        learner_process(tmp_path, quantizer, resume=True) as process,
        LearnerClient(process.address, deadline_s=DEADLINE_S) as client,
    ):
        again, refusals = join(client, "actor-0", "actor")
        assert all("restoring" in refusal for refusal in refusals)
        assert again.resume_after_sequence == 10
        assert again.run.run_id == first.run.run_id
        assert again.seed != first.seed
        assert join(client, "judge", "evaluator")[0].resume_after_sequence == 1
        worker, judge = open_stream(client, "actor-0"), open_stream(client, "judge")
        worker.send_segments(range(11, 12))
        judge.send_evaluation(evaluation(1, 1, 50.0))
        judge.send_evaluation(evaluation(2, 1, 60.0))
        judge.await_acknowledged(2)
        process.terminate()
        for stream in (worker, judge):
            refusal = stream.refusal()
            assert refusal.code() is grpc.StatusCode.UNAVAILABLE
            assert "moving" in str(refusal.details())
            assert stream.directives == {learner_pb2.DIRECTIVE_UNSPECIFIED}
        assert process.end()[0] == EXIT_INTERRUPTED

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["state"], summary["solved"]) == ("interrupted", False)
    assert summary["environment_steps"] == 88
    assert summary["transitions_by_scheme"] == {"int8": 88}
    assert [point["mean_return"] for point in summary["evaluations"]] == [50.0, 60.0]


@pytest.mark.timeout(240)
def test_a_resumed_learner_continues_its_run_in_mlflow(
    tmp_path: Path, quantizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    target = f"file:{tmp_path / 'mlflow'}"
    ends = []
    for resume, sequences, steps in ((False, range(1, 9), 64), (True, range(9, 11), 80)):
        with (
            learner_process(tmp_path, quantizer, resume, telemetry={"mlflow": target}) as process,
            LearnerClient(process.address, deadline_s=DEADLINE_S) as client,
        ):
            join(client, "actor-0", "actor")
            open_stream(client, "actor-0").send_segments(sequences)
            next(client for _ in client.watch(0.5) if steps_in_mlflow(target) == steps)
            process.terminate()
            assert process.end()[0] == EXIT_INTERRUPTED
        (run,) = mlflow_runs(target)
        ends.append((run.info.run_id, run.info.status, run.data.metrics["summary/environment_steps"]))
    assert ends == [(ends[0][0], "KILLED", 64.0), (ends[0][0], "KILLED", 80.0)]
    assert {64, 80} <= {metric.step for metric in mlflow_scalars(target, run, "training/updates")}


def steps_in_mlflow(target: str) -> int:
    """The newest environment step that MLflow has scalars of; 0 without any."""
    found = [metric.step for run in mlflow_runs(target) for metric in mlflow_scalars(target, run, "training/updates")]
    return max(found, default=0)


def test_a_replay_of_another_capacity_ends_the_process_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    ReplayStore.open(tmp_path / "run" / "replay", SPEC, capacity=4_000).close()
    write_twice(tmp_path / "run" / "environment.json", SPEC.to_json())
    with learner_process(tmp_path, "127.0.0.1:1", resume=True) as process:
        code, line = process.end()
    assert code == EXIT_USER_ERROR
    assert re.match("error: replay: .*capacity 4000.*2000", line)


def test_a_run_directory_that_cannot_be_made_ends_the_process_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with learner_process(tmp_path, "127.0.0.1:1") as process:
        code, line = process.end()
    assert code == EXIT_USER_ERROR
    assert re.fullmatch(f"error: --run-directory: {tmp_path / 'run'} .*File exists", line)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"algorithm": "no_such_module:Mine"}, "no_such_module cannot be imported"),
        (
            {
                "algorithm": "learner_service.algorithms.td3:TD3",
                "algorithm_args": {"target_rate": 0.1},
            },
            "--td3.NAME",
        ),
    ],
)
def test_an_algorithm_from_outside_that_is_wrong_ends_the_process_before_an_actor_joins(
    changes: dict[str, Any], fact: str, tmp_path: Path
) -> None:
    with learner_process(tmp_path, "127.0.0.1:1", **changes) as process:
        code, errors = process.end()
    assert code == EXIT_USER_ERROR
    assert fact in errors
    assert "Traceback" not in errors


def test_an_environment_that_cannot_be_learned_is_refused_and_the_learner_waits_for_another_actor(
    tmp_path: Path,
) -> None:
    with (
        learner_process(tmp_path, "127.0.0.1:1", environment="Pendulum-v1", algorithm="dqn") as process,
        LearnerClient(process.address, deadline_s=DEADLINE_S) as client,
    ):
        join(client, "actor-0", "actor")
        stream = ActorStream(client, "actor-0")
        stream.open(PENDULUM)
        refusal = stream.refusal()
        assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert re.search("dqn .*discrete.*Pendulum-v1", str(refusal.details()))
        status = client.status()
        assert status.state is RunState.WAITING_FOR_ACTORS
        assert status.problem == f"actor-0: {refusal.details()}"
        process.terminate()
        assert process.end()[0] == EXIT_INTERRUPTED
    assert not (tmp_path / "run" / "environment.json").exists()


def test_a_learner_without_file_descriptors_accepts_connections_once_one_is_free(
    tmp_path: Path, quantizer: str
) -> None:
    with learner_process(tmp_path, quantizer) as process, LearnerClient(process.address, deadline_s=DEADLINE_S) as held:
        held.status()
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        taken = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
        first_free = min(set(range(len(taken) + 1)) - taken)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (first_free, before[1]))
        # It beats once a second.
        began = held.status().elapsed_s
        assert next(status for status in held.watch(period_s=0.1) if status.elapsed_s > began + 3.0)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        with LearnerClient(process.address, deadline_s=DEADLINE_S) as new:
            assert new.status().state is RunState.WAITING_FOR_ACTORS
        process.terminate()
        assert process.end()[0] == EXIT_INTERRUPTED
