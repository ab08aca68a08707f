"""Resetting a run's environment from outside: by RPC and by `actorq reset-environment`."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from actorq.client import LearnerClient
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import RunState
from actorq.errors import ConflictError, InvalidInputError, UnavailableError
from actorq_apps.cli.main import main
from learner_service.run.preparation import NAMES, begin_reset
from tests.learner_service.learner_parts import SPEC, config, on_a_loop, segment, store, until
from tests.learner_service.learner_servers import DEADLINE_S, ActorStream, joined, running_learner
from tests.learner_service.run.run_parts import a_run
from tests.learner_service.run.run_parts import opened as opened_in

WIDE = replace(SPEC, observations=ArraySpec((6,), "float32"))


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[LearnerClient]:
    """A learner whose quantizer is unreachable, and whose run makes progress with the first segment."""
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


def test_after_a_reset_the_right_environment_replaces_a_wrong_first_one(
    learner: LearnerClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = opened(learner, "wrong", WIDE)
    stream = joined(learner, "right")
    refusal = stream.refusal()
    assert refusal.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert re.search(r"observations\.shape \(4,\) .*\(6,\)", str(refusal.details()))
    status = learner.status()
    assert (status.problem, status.refused_environments) == (f"right: {refusal.details()}", 1)

    assert main(["reset-environment", "--learner", address_of(learner)]) == 0
    said = capsys.readouterr().out
    assert "CartPole-v1, observations [6]\n" in said
    assert f"{tmp_path / 'run' / 'before-reset-1'}," in said
    disconnected = wrong.refusal()
    assert disconnected.code() is grpc.StatusCode.UNAVAILABLE
    assert "reset" in str(disconnected.details())
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
    with pytest.raises(ConflictError, match="8 transitions"):
        learner.reset_environment()
    assert main(["reset-environment", "--learner", address_of(learner)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "actorq reset-environment --discard" in error
    assert learner.status().environment_steps == 8
    assert learner.reset_environment(discard=True).spec == SPEC
    assert learner.status().environment_steps == 0
    assert stream.refusal().code() is grpc.StatusCode.UNAVAILABLE
    # The same incarnation continues its numbers.
    assert learner.join("actor-0", 1, "actor", "test").resume_after_sequence == 1


@on_a_loop
async def test_a_reset_that_the_disk_refuses_loses_no_checkpoint(tmp_path: Path) -> None:
    settings = config(replay={"capacity": 2_000, "min_size": 8}, checkpoint={"period_s": 1_000.0, "keep": 1})
    async with a_run(tmp_path, settings) as run:
        stream = await opened_in(run)
        await store(run, stream, segment(1), segment(2))
        trainer = run.training.trainer if run.training else None
        assert trainer is not None
        await until(stream, lambda: trainer.updates > 0)
        _, saved = await run.save()
        # Nothing can replace a folder with a file in it.
        (tmp_path / "run.json").unlink()
        (tmp_path / "run.json" / "taken").mkdir(parents=True)
        with pytest.raises(UnavailableError, match="aside"):
            await run.preparation.reset(discard=True)
        run.connections.close_stream(stream)
        with pytest.raises(InvalidInputError, match="replay: "):
            await opened_in(run, "wide", spec=WIDE)
        await opened_in(run)
        _, later = await run.save()
        assert later >= saved
    assert f"{later:012d}" in [path.name for path in (tmp_path / "checkpoints").iterdir()]


def test_a_run_without_an_environment_cannot_be_reset(
    learner: LearnerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reset-environment", "--learner", address_of(learner)]) == 0
    assert capsys.readouterr().out.startswith("no spec")


def test_an_unreachable_learner_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset-environment", "--learner", "127.0.0.1:1"]) == 2
    assert "--learner" in capsys.readouterr().err


@on_a_loop
@pytest.mark.parametrize("moved", range(6))
async def test_a_reset_that_a_kill_interrupts_is_finished_by_the_next_learner(tmp_path: Path, moved: int) -> None:
    async with a_run(tmp_path) as run:
        stream = await opened_in(run)
        await store(run, stream, segment(1))
    names = ["evaluations.jsonl", *(name for name in NAMES if (tmp_path / name).exists())]
    folder = begin_reset(tmp_path)
    for name in names[:moved]:
        (tmp_path / name).rename(folder / name)
    async with a_run(tmp_path, resume=True) as run:
        await run.preparation.restore()
        # The next actor decides, with an empty replay.
        assert run.lifecycle.state is RunState.WAITING_FOR_ACTORS
        stream = await opened_in(run, spec=WIDE)
        assert run.training is not None
        assert run.training.replay.total_transitions == 0
        assert run.records.evaluations.count == 0
    assert {path.name for path in folder.iterdir()} >= {*names}
    assert not list(tmp_path.glob("reset*"))
