"""Resetting a run's environment from outside: by RPC and by `actorq reset-environment`."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from actorq.cli.main import main
from actorq.client import LearnerClient
from actorq.domain.status import RunState
from actorq.domain.trajectory import ArraySpec, EnvironmentSpec
from actorq.errors import ConflictError
from tests.learner_service.learner_parts import SPEC, config, segment
from tests.learner_service.learner_servers import DEADLINE_S, ActorStream, joined, running_learner

WIDE = replace(SPEC, observations=ArraySpec((6,), "float32"))


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[LearnerClient]:
    """A learner whose quantizer is away, and whose run makes progress with the first segment."""
    settings = config(replay={"capacity": 2_000, "min_size": 8})
    with (
        running_learner(settings, tmp_path / "run", "127.0.0.1:1") as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        yield client


def opened(learner: LearnerClient, name: str, spec: EnvironmentSpec) -> ActorStream:
    stream = joined(learner, name, spec=spec)
    stream.await_credit(1)
    return stream


def address_of(learner: LearnerClient) -> str:
    return learner.peer.rpartition(" ")[2]


def test_a_wrong_first_environment_is_reset_and_the_right_one_counts(
    learner: LearnerClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = opened(learner, "wrong", WIDE)
    stream = joined(learner, "right")
    refusal = stream.refusal()
    assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "observations.shape (4,) instead of (6,)" in str(refusal.details())
    status = learner.status()
    assert (status.problem, status.refused_environments) == (f"right: {refusal.details()}", 1)

    assert main(["reset-environment", "--learner", address_of(learner)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "forgotten: CartPole-v1, observations [6]",
        f"earlier files: {tmp_path / 'run' / 'before-reset-1'}, on the learner's disk",
        "the spec of the next actor counts",
    ]
    disconnected = wrong.refusal()
    assert disconnected.code() is grpc.StatusCode.UNAVAILABLE
    assert "the run's environment was reset; join again" in str(disconnected.details())
    assert learner.status().state is RunState.WAITING_FOR_ACTORS
    right = opened(learner, "right", SPEC)
    right.send_segment(segment(1))
    right.await_acknowledged(1)
    assert learner.status().problem == ""
    right.close()


def test_a_run_with_progress_is_not_reset_by_accident(
    learner: LearnerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = opened(learner, "actor-0", SPEC)
    stream.send_segment(segment(1))
    stream.await_acknowledged(1)
    with pytest.raises(ConflictError, match="the run has made progress"):
        learner.reset_environment()
    assert main(["reset-environment", "--learner", address_of(learner)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "actorq reset-environment --discard" in error
    assert learner.status().environment_steps == 8
    assert learner.reset_environment(discard=True).spec == SPEC
    assert learner.status().environment_steps == 0
    assert stream.refusal().code() is grpc.StatusCode.UNAVAILABLE
    # The same incarnation goes on with its numbers.
    assert learner.join("actor-0", 1, "actor", "test").resume_after_sequence == 1


def test_nothing_is_reset_where_there_is_no_environment_yet(
    learner: LearnerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reset-environment", "--learner", address_of(learner)]) == 0
    assert capsys.readouterr().out.splitlines() == ["no spec yet", "the spec of the next actor counts"]


def test_a_learner_that_is_not_there_is_the_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset-environment", "--learner", "127.0.0.1:1"]) == 2
    assert "name a learner that runs with --learner HOST:PORT" in capsys.readouterr().err
