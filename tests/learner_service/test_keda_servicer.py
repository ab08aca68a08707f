"""KEDA's calls on a real socket."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from actorq.errors import UnavailableError
from actorq.externalscaler import externalscaler_pb2 as pb
from actorq.externalscaler import externalscaler_pb2_grpc
from learner_service.keda_servicer import ScalerServicer
from tests.learner_service.learner_parts import on_a_loop
from tests.learner_service.learner_servers import DEADLINE_S, joined, running_learner, running_quantizer
from tests.learner_service.run.run_parts import a_run

SMALL = RunConfig.model_validate(
    {"environments_per_actor": 2, "dqn": {"hidden_sizes": (8,)}, "replay": {"capacity": 2_000, "min_size": 64}}
)
REFERENCE = pb.ScaledObjectRef(name="actor", namespace="runs", scalerMetadata={"scalerAddress": "learner:50051"})


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[LearnerClient]:
    with (
        running_learner(RunConfig(), tmp_path / "run", "127.0.0.1:1", linger=True) as running,
        LearnerClient(running.address, deadline_s=DEADLINE_S) as client,
    ):
        yield client


@pytest.fixture
def scaler(learner: LearnerClient) -> externalscaler_pb2_grpc.ExternalScalerStub:
    return externalscaler_pb2_grpc.ExternalScalerStub(learner.channel)


def test_the_metric_is_the_number_of_actors(scaler: externalscaler_pb2_grpc.ExternalScalerStub) -> None:
    (spec,) = scaler.GetMetricSpec(REFERENCE, timeout=DEADLINE_S).metricSpecs
    assert (spec.targetSize, spec.targetSizeFloat) == (1, 1.0)
    request = pb.GetMetricsRequest(scaledObjectRef=REFERENCE, metricName=spec.metricName)
    (value,) = scaler.GetMetrics(request, timeout=DEADLINE_S).metricValues
    assert value.metricName == spec.metricName
    # Nothing is known yet: one actor, to begin with.
    assert (value.metricValue, value.metricValueFloat) == (1, 1.0)


def test_a_run_wants_actors_until_it_is_over(
    learner: LearnerClient, scaler: externalscaler_pb2_grpc.ExternalScalerStub
) -> None:
    changes = scaler.StreamIsActive(REFERENCE, timeout=DEADLINE_S)
    assert next(changes).result is True
    assert scaler.IsActive(REFERENCE, timeout=DEADLINE_S).result is True
    learner.stop()
    assert next(changes).result is False
    assert scaler.IsActive(REFERENCE, timeout=DEADLINE_S).result is False
    (value,) = scaler.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=REFERENCE), timeout=DEADLINE_S).metricValues
    assert value.metricValue == 0
    changes.cancel()
    with pytest.raises(grpc.RpcError):
        next(changes)


def test_a_restarted_learner_does_not_ask_for_fewer_actors_before_it_has_measured(tmp_path: Path) -> None:
    request = pb.GetMetricsRequest(scaledObjectRef=REFERENCE)
    with running_quantizer(tmp_path / "policies") as quantizer:
        with (
            running_learner(SMALL, tmp_path / "run", quantizer) as first,
            LearnerClient(first.address, deadline_s=DEADLINE_S) as client,
        ):
            stream = joined(client, "actor-0")
            stream.await_credit(1)
            scaler = externalscaler_pb2_grpc.ExternalScalerStub(client.channel)
            assert scaler.GetMetrics(request, timeout=DEADLINE_S).metricValues[0].metricValue == 1
            stream.close()
        with (
            running_learner(SMALL, tmp_path / "run", quantizer, resume=True) as second,
            LearnerClient(second.address, deadline_s=DEADLINE_S) as client,
        ):
            scaler = externalscaler_pb2_grpc.ExternalScalerStub(client.channel)
            with pytest.raises(grpc.RpcError) as caught:
                scaler.GetMetrics(request, timeout=DEADLINE_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert scaler.IsActive(REFERENCE, timeout=DEADLINE_S).result is True


@on_a_loop
async def test_a_learner_that_saves_its_run_does_not_send_the_actors_away(tmp_path: Path) -> None:
    async with a_run(tmp_path / "run") as run:
        servicer = ScalerServicer(run)
        run.lifecycle.finish(RunState.STOPPED)
        with pytest.raises(UnavailableError):
            await servicer.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=REFERENCE), None)
        await run.lifecycle.ended.wait()
        answer = await servicer.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=REFERENCE), None)
        assert answer.metricValues[0].metricValue == 0


@on_a_loop
async def test_a_learner_that_is_interrupted_does_not_send_the_actors_away(tmp_path: Path) -> None:
    async with a_run(tmp_path / "run") as run:
        servicer = ScalerServicer(run)
        changes = servicer.StreamIsActive(REFERENCE, None)
        assert (await anext(changes)).result is True
        run.lifecycle.interrupt()
        await run.lifecycle.ended.wait()
        for answer in (servicer.GetMetrics(pb.GetMetricsRequest(scaledObjectRef=REFERENCE), None), anext(changes)):
            with pytest.raises(UnavailableError, match="moving"):
                await answer
        assert (await servicer.IsActive(REFERENCE, None)).result is True
