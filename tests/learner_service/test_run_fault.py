"""A run that ends with a fault is closed, and the fault is the error that the user sees."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from actorq.client import LearnerClient
from actorq.errors import ActorQError
from actorq.v1 import learner_pb2
from learner_service.report import Reporter
from learner_service.run.records import Records
from tests.learner_service.learner_parts import config
from tests.learner_service.learner_servers import (
    DEADLINE_S,
    ActorStream,
    actor,
    joined,
    running_learner,
    running_quantizer,
)

# Threads of a learner that end when it is closed. The last one is that of a tracker's sink.
THREADS = {"trainer", "publisher", "flusher", "storage", "sink-mlflow"}
FAULT = "cannot continue"


@pytest.fixture
def quantizer_of_another_run(tmp_path: Path) -> Iterator[str]:
    with running_quantizer(tmp_path / "store") as quantizer:
        with (
            running_learner(config(), tmp_path / "other", quantizer) as running,
            LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
            actor(client, "actor-0"),
        ):
            next(status for status in client.watch(0.05) if status.emitted)
        yield quantizer


@contextmanager
def run_with_a_fault(directory: Path, quantizer: str) -> Iterator[ActorStream]:
    """The stream of an actor in a run that ends with a fault. Afterwards nothing of the learner runs.

    A watcher also gets the fault. Otherwise the learner would wait for it, and the next learner for this one.
    """
    before = set(threading.enumerate())
    settings = config(telemetry={"mlflow": f"file:{directory / 'mlflow'}"})
    try:
        with (
            running_learner(settings, directory / "run", quantizer) as running,
            LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
        ):
            watching = client.stub.WatchStatus(learner_pb2.WatchStatusRequest(), timeout=DEADLINE_S)
            worker = joined(client, "actor-0")
            yield worker
            worker.assert_refused(grpc.StatusCode.UNAVAILABLE, "failed")
            with pytest.raises(grpc.RpcError, match="failed"):
                list(watching)
    finally:
        for thread in set(threading.enumerate()) - before:
            if thread.name in THREADS:
                # That of a tracker that was too slow ends once its process is killed.
                thread.join(DEADLINE_S)
                assert not thread.is_alive(), thread.name


def test_a_run_with_a_fault_is_closed(tmp_path: Path, quantizer_of_another_run: str) -> None:
    with pytest.raises(ActorQError, match=FAULT), run_with_a_fault(tmp_path, quantizer_of_another_run):
        pass
    # The time until the next learner is a restart.
    assert json.loads((tmp_path / "run" / "clock.json").read_text())["ended"] is False


def test_a_run_is_closed_after_an_error_of_the_learner_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ArithmeticError, match="as the test wants it"),
        run_with_a_fault(tmp_path, "127.0.0.1:1") as worker,
    ):
        break_reporter(worker, monkeypatch)


def test_the_fault_stays_the_error_when_the_run_cannot_be_closed(
    tmp_path: Path, quantizer_of_another_run: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Records, "close", fail)
    with pytest.raises(ActorQError, match=FAULT), run_with_a_fault(tmp_path, quantizer_of_another_run):
        pass
    assert "could not be closed" in caplog.text


def break_reporter(worker: ActorStream, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.await_credit(1)
    monkeypatch.setattr(Reporter, "write_events", fail)


def fail(*arguments: object) -> None:
    raise ArithmeticError("as the test wants it")
