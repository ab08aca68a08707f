"""A learner end to end on a real socket, with a real quantizer, and actors that are played by hand."""

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from actorq import wire
from actorq.client import LearnerClient, QuantizerClient
from actorq.domain.processes import NodeEnergy
from actorq.domain.spaces import ArraySpec
from actorq.domain.status import ActorReport, RunState
from actorq.domain.trajectory import Evaluation, Role
from actorq.errors import ConflictError, InvalidInputError
from actorq.process import EXIT_OK
from actorq.telemetry.process_stats import measure_process
from actorq.v1 import learner_pb2
from tests.builders.service_process import service_process
from tests.learner_service.learner_parts import SPEC, config, evaluation, segment, with_an_episode_end
from tests.learner_service.learner_servers import (
    DEADLINE_S,
    ActorStream,
    actor,
    joined,
    running_learner,
    running_quantizer,
)


@pytest.fixture(scope="module")
def quantizer_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`python -m quantizer_service`; gives its address."""
    with service_process("quantizer", "--store", str(tmp_path_factory.mktemp("quantizer"))) as process:
        yield process.address
        process.terminate()
        assert process.end()[0] == EXIT_OK


@pytest.fixture(scope="module")
def learner(quantizer_process: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerClient]:
    """A learner that all tests share. Each test uses its own actors."""
    directory = tmp_path_factory.mktemp("run")
    with (
        running_learner(config(), directory, quantizer_process) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        yield client


def steps(client: LearnerClient) -> int:
    return client.status().environment_steps


def is_connected(client: LearnerClient, name: str) -> bool:
    return any(status.connected for status in client.status().actors if status.name == name)


def test_joining_returns_all_that_an_actor_needs(learner: LearnerClient) -> None:
    membership = learner.join("teller-2", 1, "actor", "test")
    run = membership.run
    assert (run.environment_id, run.environments_per_actor, run.segment_length) == ("CartPole-v1", 2, 4)
    assert (run.scheme, run.report_period_s, run.max_steps_per_policy) == ("int8", 0.5, 13)
    assert membership.actor_index == 2
    assert membership.exploration == config().exploration_of(2, 0)
    assert membership.resume_after_sequence == 0
    assert learner.join("teller-judge", 1, "evaluator", "test").exploration is None
    assert run.run_id == learner.status().run_id


def test_segments_within_the_credit_are_acknowledged_and_counted(learner: LearnerClient) -> None:
    with actor(learner, "sender") as stream:
        before = steps(learner)
        stream.send_segments(range(1, 6))
        stream.await_credit(6)
        stream.send_segment(with_an_episode_end(6))
        stream.await_acknowledged(6)
        assert steps(learner) == before + 5 * 8 + 7
        assert is_connected(learner, "sender")
        status = learner.status()
        assert status.training_return == 21.0
        assert status.episodes == 1
    assert not is_connected(learner, "sender")


def test_a_repeated_segment_is_stored_once(learner: LearnerClient) -> None:
    with actor(learner, "repeater") as stream:
        before = steps(learner)
        stream.send_segments(range(1, 2))
        stream.send_segment(segment(1))
        stream.send_segments(range(2, 3))
        assert steps(learner) == before + 16
    # The actor lost the acknowledgement, and has another stream.
    assert learner.join("repeater", 1, "actor", "test").resume_after_sequence == 2
    with actor(learner, "repeater") as stream:
        assert stream.await_credit(3).acknowledged_sequence == 2
        stream.send_segment(segment(2))
        stream.send_segments(range(3, 4))
        assert steps(learner) == before + 24
    # Another life counts from 1 again.
    with actor(learner, "repeater", incarnation=2) as stream:
        stream.send_segments(range(1, 2))
        assert steps(learner) == before + 32


def test_a_segment_of_a_wrong_shape_is_refused_and_changes_nothing(learner: LearnerClient) -> None:
    with actor(learner, "bystander") as bystander:
        bystander.send_segments(range(1, 2))
        before = steps(learner)
        stream = joined(learner, "bad")
        stream.await_credit(1)
        stream.send_segment(segment(1, observations=np.zeros((5, 2, 3), np.float32)))
        stream.assert_refused(grpc.StatusCode.INVALID_ARGUMENT, r"observations.*\[5, 2, 4\].*\[5, 2, 3\]")
        assert steps(learner) == before
        assert not is_connected(learner, "bad")
        assert learner.join("bad", 1, "actor", "test").resume_after_sequence == 0
        # Credit of other streams is not changed.
        bystander.send_segments(range(2, 5))


@pytest.mark.parametrize("first", [{}, {"segment": {"sequence": 1}}], ids=["nothing", "a segment"])
def test_a_stream_begins_with_open(learner: LearnerClient, first: dict[str, Any]) -> None:
    stream = ActorStream(learner, "rude")
    stream.send(**first)
    stream.assert_refused(grpc.StatusCode.INVALID_ARGUMENT, "first.*`open`")


@pytest.mark.parametrize(("sent", "got"), [({"open": {"actor_name": "odd"}}, "open"), ({}, "an empty message")])
def test_after_open_a_stream_accepts_segments_evaluations_and_reports(
    learner: LearnerClient, sent: dict[str, Any], got: str
) -> None:
    stream = joined(learner, "odd")
    stream.send(**sent)
    stream.assert_refused(grpc.StatusCode.INVALID_ARGUMENT, f"got {got}$")


def test_an_actor_that_has_not_joined_is_not_found(learner: LearnerClient) -> None:
    stream = ActorStream(learner, "stranger")
    stream.open(SPEC)
    stream.assert_refused(grpc.StatusCode.NOT_FOUND, "'stranger'.*incarnation 1")


def test_a_newer_process_of_a_name_ends_the_older_one_at_once(learner: LearnerClient) -> None:
    old = learner.join("twin", 0, "actor", "test", nonce=1)
    stream = ActorStream(learner, "twin", old.incarnation)
    stream.open(SPEC)
    stream.send_segments(range(1, 3))
    new = learner.join("twin", 0, "actor", "test", nonce=2)
    stream.assert_refused(grpc.StatusCode.FAILED_PRECONDITION, f"'twin'.*{old.incarnation}")
    with pytest.raises(ConflictError, match=f"'twin'.*{old.incarnation}"):
        learner.join("twin", old.incarnation, "actor", "test", nonce=1)
    assert new.resume_after_sequence == 0
    with actor(learner, "twin", new.incarnation) as stream:
        stream.send_segments(range(1, 3))
    assert learner.join("twin", new.incarnation, "actor", "test").resume_after_sequence == 2


def test_a_newer_stream_of_an_actor_ends_the_older_one(learner: LearnerClient) -> None:
    before = joined(learner, "quick")
    before.send_segments(range(1, 3))
    with actor(learner, "quick") as after:
        after.send_segments(range(3, 5))
        before.assert_refused(grpc.StatusCode.UNAVAILABLE, "another stream")
        assert is_connected(learner, "quick")


def test_segments_after_a_refused_one_are_not_stored(learner: LearnerClient) -> None:
    stream = joined(learner, "hopeless")
    stream.await_credit(2)
    before = steps(learner)
    stream.send_segment(segment(1, rewards=np.full((4, 2), np.nan, np.float32)))
    stream.send_segment(segment(2))
    assert stream.refusal().code() is grpc.StatusCode.INVALID_ARGUMENT
    assert learner.join("hopeless", 1, "actor", "test").resume_after_sequence == 0
    assert steps(learner) == before


def test_an_actor_with_another_environment_is_refused(learner: LearnerClient) -> None:
    with actor(learner, "first"):
        stream = joined(learner, "other", spec=replace(SPEC, observations=ArraySpec((5,), "float32")))
        error = stream.refusal()
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert not is_connected(learner, "other")


def test_a_report_reveals_a_segment_lost_in_transit(learner: LearnerClient) -> None:
    stream = joined(learner, "loser")
    stream.send_segment(segment(1))
    stream.await_acknowledged(1)
    report = wire.actor_report_to_proto(ActorReport(1, "int8", 8, 1.0, 0, (), measure_process("loser", "actor")))
    stream.send(report=report, sent_sequence=1)
    # An answer to a report repeats the last one, which may have been lost.
    assert stream.answer().acknowledged_sequence == 1
    status = learner.status()
    (told,) = [actor.report for actor in status.actors if actor.name == "loser"]
    assert told is not None
    assert (told.policy_version, told.environment_steps) == (1, 8)
    assert "loser" in [process.name for process in status.processes]
    stream.send(report=report, sent_sequence=2)
    stream.assert_refused(grpc.StatusCode.DATA_LOSS, "sequences 2 to 2 ")
    assert learner.join("loser", 1, "actor", "test").resume_after_sequence == 1


@pytest.mark.parametrize(("name", "role"), [("learner", "learner"), ("forger", "evaluator"), ("other", "actor")])
def test_an_actor_may_only_report_about_itself(learner: LearnerClient, name: str, role: str) -> None:
    stream = joined(learner, "forger")
    forged = replace(measure_process(name, role), cpu_seconds=1e9)
    stream.send(report=wire.actor_report_to_proto(ActorReport(1, "int8", 8, 1.0, 0, (), forged)))
    stream.assert_refused(grpc.StatusCode.INVALID_ARGUMENT, rf"report\.process.*'forger'.*{role} '{name}'")
    assert all(process.cpu_seconds < 1e9 for process in learner.status().processes)


def test_a_gap_in_the_sequence_is_refused(learner: LearnerClient) -> None:
    before = steps(learner)
    stream = joined(learner, "jumper")
    stream.await_credit(2)
    stream.send_segment(segment(2))
    stream.assert_refused(grpc.StatusCode.DATA_LOSS, "sequences 1 to 1 ")
    assert steps(learner) == before


def test_training_is_paused_saved_and_resumed(learner: LearnerClient) -> None:
    with actor(learner, "worker") as stream:
        stream.send_segments(range(1, 9))
        updates = learner.pause()
        assert learner.status().state is RunState.PAUSED
        assert learner.status().updates == updates
        first = Path(learner.save_checkpoint())
        assert int(first.name) == updates
        assert (first / "state.json").exists()
        stream.send_segments(range(9, 12))
        # Between the two checkpoints there was data, but no update.
        assert learner.save_checkpoint() == str(first)
        assert learner.pause() == learner.status().updates == int(first.name)
        assert learner.resume() == int(first.name)
        updated = next(status for status in learner.watch(0.05) if status.updates > int(first.name))
        assert updated.state is RunState.TRAINING
        assert updated.loss > 0


def test_policies_reach_the_quantizer(learner: LearnerClient, quantizer_process: str) -> None:
    with actor(learner, "audience") as stream:
        stream.send_segments(range(1, 9))
        with QuantizerClient(quantizer_process) as quantizer:
            policies = quantizer.watch("int8")
            policy = next(policy for policy in policies if policy.descriptor.learner_step > 0)
        assert policy.descriptor.run_id == learner.status().run_id
        assert policy.descriptor.fidelity.observations > 1
        emitted = next(status.emitted for status in learner.watch(0.05) if status.emitted)
        assert emitted.scheme == "int8"
        assert learner.status().quantizer_connected


def test_evaluations_are_sent_to_the_quantizer(learner: LearnerClient, quantizer_process: str) -> None:
    with (
        actor(learner, "exhibitor") as stream,
        actor(learner, "critic", role="evaluator") as critic,
        QuantizerClient(quantizer_process) as quantizer,
    ):
        stream.send_segments(range(1, 9))
        version = next(quantizer.watch("int8")).descriptor.version
        assert quantizer.hold(version, 60.0)
        critic.send_evaluation(evaluation(1, version, 9.0))
        critic.await_acknowledged(1)
        listed = (policy for _ in range(10_000) for policy in quantizer.list())
        assert next(policy.mean_return for policy in listed if policy.version == version and policy.mean_return) == 9.0


def test_the_watch_period_has_bounds(learner: LearnerClient) -> None:
    statuses = learner.watch(0.05)
    first, second = next(statuses), next(statuses)
    assert second.elapsed_s > first.elapsed_s
    request = learner_pb2.WatchStatusRequest(period=Duration(nanos=1_000_000))
    with pytest.raises(grpc.RpcError) as refused:
        next(learner.stub.WatchStatus(request))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(InvalidInputError, match=r"period.*3600\.0"):
        next(learner.watch(7200.0))


def node_energy(cpu_kwh: float, busy_cpu_seconds: float) -> NodeEnergy:
    return NodeEnergy(platform.node(), cpu_kwh, 0.0, 0.0, cpu_kwh * 0.4, busy_cpu_seconds, "a test's own meter")


def test_energy_is_shared_out_to_the_services(learner: LearnerClient) -> None:
    meter = replace(measure_process("meter-0", "meter"), cpu_seconds=10.0)
    learner.report_energy(node_energy(0.0, 0.0), (meter,))
    learner.report_energy(node_energy(2.0, 200.0), (replace(meter, cpu_seconds=60.0),))
    energy = learner.status().energy
    # The meter was busy for 50 of the machine's 200 s, and the learner for next to nothing.
    assert energy.kwh_per_service["meter"] == pytest.approx(0.5)
    assert 0.5 <= energy.kwh < 2.0
    assert energy.co2_kg == pytest.approx(energy.kwh * 0.4)
    assert energy.method == "a test's own meter"
    assert energy.kwh_per_service.keys() >= {"learner", "meter"}
    assert sum(energy.kwh_per_service.values()) == pytest.approx(energy.kwh)
    assert {("learner", "learner"), ("meter-0", "meter")} <= {
        (process.name, process.role) for process in learner.status().processes
    }


def test_a_malformed_energy_report_is_refused(learner: LearnerClient) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        learner.stub.ReportEnergy(learner_pb2.ReportEnergyRequest(), timeout=DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_segment_without_credit_is_refused(tmp_path: Path) -> None:
    scarce = config(rate_limiter={"samples_per_insert": 4.0, "error_buffer": 8.0})
    with (
        running_quantizer(tmp_path / "store") as quantizer,
        running_learner(scarce, tmp_path / "run", quantizer) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        with pytest.raises(ConflictError, match="no training"):
            client.pause()
        stream = joined(client, "hasty")
        sequence, credit = 0, stream.await_credit(1).credit_through_sequence
        client.pause()
        while credit > sequence:
            sequence += 1
            stream.send_segment(segment(sequence))
            credit = stream.await_acknowledged(sequence).credit_through_sequence
        assert 64 <= sequence * 8 <= 96
        stream.send_segment(segment(sequence + 1))
        stream.assert_refused(grpc.StatusCode.FAILED_PRECONDITION, f"sequence.* {sequence}, .*{sequence + 1}")
        assert steps(client) == sequence * 8
        client.resume()
        with actor(client, "hasty") as again:
            again.send_segments(range(sequence + 1, sequence + 3))
            next(status for status in client.watch(0.05) if status.updates)


def test_an_evaluation_that_does_not_fit_the_run_is_refused(learner: LearnerClient) -> None:
    good = evaluation(1, 1, 9.0)
    cases: list[tuple[Role, Evaluation]] = [
        ("actor", good),
        ("evaluator", replace(good, scheme="int4")),
        ("evaluator", replace(good, policy_version=0)),
    ]
    before = learner.status().evaluation
    for number, (role, sent) in enumerate(cases):
        name = f"liar-{number}"
        stream = joined(learner, name, role=role)
        stream.send_evaluation(sent)
        fact = f"{role} .*version {sent.policy_version} {sent.scheme!r}"
        stream.assert_refused(grpc.StatusCode.INVALID_ARGUMENT, fact)
    assert learner.status().evaluation == before
