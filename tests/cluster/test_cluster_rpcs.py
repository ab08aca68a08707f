"""Calls every RPC of every service from outside the cluster, through forwarded ports."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from actorq import wire
from actorq.client import LearnerClient
from actorq.domain.contract import CONTRACT
from actorq.domain.policy import PolicyDescriptor
from actorq.domain.processes import NodeEnergy
from actorq.domain.status import RunState
from actorq.domain.trajectory import Evaluation
from actorq.errors import ConflictError, InvalidInputError, UnavailableError
from actorq.externalscaler import externalscaler_pb2, externalscaler_pb2_grpc
from actorq.telemetry.process_stats import measure_process
from actorq.transport.errors import translated
from actorq.v1 import actor_pb2, learner_pb2, quantizer_pb2
from actorq_apps.cluster import access
from tests.cluster.cluster_run import ACTOR_PORT, ClusterRun, acting, on_cluster
from tests.cluster.older_kubernetes import Overlays

pytestmark = on_cluster(300)

SERVICES = {
    "learner": (50051, learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name),
    "quantizer": (50052, quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"].full_name),
    "actor": (ACTOR_PORT, actor_pb2.DESCRIPTOR.services_by_name["ActorService"].full_name),
    "evaluator": (ACTOR_PORT, actor_pb2.DESCRIPTOR.services_by_name["ActorService"].full_name),
}


@pytest.fixture(scope="module")
def run(new_namespace: Callable[[], str], overlays: Overlays) -> Iterator[ClusterRun]:
    run = ClusterRun.in_namespace(new_namespace(), overlays.path("endless"))
    run.up()
    run.until(lambda status: status.updates > 0 and status.evaluation is not None and status.emitted is not None)
    yield run
    run.down("--delete-volume")


@pytest.fixture
def learner(run: ClusterRun) -> Iterator[LearnerClient]:
    with access.learner_of(run.cluster, None) as client:
        yield client


@pytest.mark.parametrize("role", SERVICES)
def test_health_reflection_and_metrics(run: ClusterRun, role: str) -> None:
    port, service = SERVICES[role]
    pod = run.pods(role)[0].name
    with run.port(pod, port) as address, grpc.insecure_channel(address) as channel:
        for name in ("", service):
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answer = next(stub.ServerReflectionInfo(iter([request]), timeout=60))
        assert service in {each.name for each in answer.list_services_response.service}
    with run.port(pod, 9090) as address:
        assert "actorq_info" in _get(address)


def _get(address: str) -> str:
    with urlopen(f"http://{address}/metrics", timeout=60) as response:
        return str(response.read(), "utf-8")


def test_the_learner_is_watched_paused_and_saved(learner: LearnerClient) -> None:
    status = learner.status()
    assert status.environment_id == "CartPole-v1"
    steps = [status.environment_steps for status in itertools.islice(learner.watch(0.1), 3)]
    assert steps == sorted(steps)
    paused = learner.pause()
    assert learner.status().state is RunState.PAUSED
    # An update in progress is finished.
    assert learner.pause() >= paused
    assert learner.resume() >= paused
    assert learner.save_checkpoint().startswith("/data/run/")
    assert learner.join("visitor", 1, "evaluator", "0").run.run_id == status.run_id


def test_a_meter_reports_the_energy_of_its_node(learner: LearnerClient) -> None:
    meter = replace(measure_process("meter-0", "meter"), node="elsewhere")
    learner.report_energy(NodeEnergy("elsewhere", 0.5, 0.1, 0.0, 0.2, busy_cpu_seconds=1.0, method="by hand"), (meter,))
    processes = {process.name for process in learner.status().processes}
    assert "meter-0" in processes


def test_an_actors_stream_is_opened_and_answered(run: ClusterRun, learner: LearnerClient) -> None:
    with run.actor(run.pods("actor")[0].name) as actor:
        environment = actor.status().environment
    assert environment is not None
    learner.join("visitor", 2, "evaluator", "0")
    opening = learner_pb2.StreamOpen(
        actor_name="visitor", incarnation=2, environment=wire.environment_to_proto(environment)
    )
    stream = learner.stub.StreamTrajectories(iter([learner_pb2.StreamTrajectoriesRequest(open=opening)]), timeout=60)
    assert next(stream).acknowledged_sequence == 0
    stream.cancel()
    with pytest.raises(InvalidInputError, match="`open`"), translated(learner.peer):
        list(learner.stub.StreamTrajectories(iter([learner_pb2.StreamTrajectoriesRequest()]), timeout=60))


def test_another_run_cannot_publish(run: ClusterRun) -> None:
    opening = quantizer_pb2.PublishOpen(run_id="another", scheme="int8", contract=CONTRACT)
    with run.quantizer() as quantizer:
        requests = iter([quantizer_pb2.PublishCheckpointsRequest(open=opening)])
        with pytest.raises(ConflictError, match="run"), translated(quantizer.peer):
            # A forwarded port resets connections while the pod is not ready, for example on a busy node. Clients try
            # again.
            list(quantizer.stub.PublishCheckpoints(requests, timeout=60, wait_for_ready=True))


def test_keda_gets_the_number_of_useful_actors(run: ClusterRun) -> None:
    reference = externalscaler_pb2.ScaledObjectRef(name="actor", namespace=run.cluster.namespace)
    with access.forwarded(run.cluster, "learner") as forward, grpc.insecure_channel(forward.address) as channel:
        stub = externalscaler_pb2_grpc.ExternalScalerStub(channel)
        assert stub.IsActive(reference, timeout=60).result
        assert next(iter(stub.StreamIsActive(reference, timeout=60))).result
        name = stub.GetMetricSpec(reference, timeout=60).metricSpecs[0].metricName
        request = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=reference, metricName=name)
        assert stub.GetMetrics(request, timeout=60).metricValues[0].metricValue >= 1


def test_the_quantizer_returns_its_policies(run: ClusterRun) -> None:
    with run.quantizer() as quantizer:
        newest = quantizer.get("int8")
        assert newest.model
        descriptor: PolicyDescriptor = quantizer.fidelity("int8", newest.descriptor.version)
        assert descriptor.version == newest.descriptor.version
        assert newest.descriptor.version in {policy.version for policy in quantizer.list()}
        versions = [policy.descriptor.version for policy in itertools.islice(quantizer.watch("int8"), 2)]
        assert versions[0] < versions[1]


def test_an_actor_reports_evaluates_and_drains(run: ClusterRun) -> None:
    pod = run.pods("actor")[0].name
    with run.actor(pod) as actor:
        assert actor.status().name == pod
        *episodes, evaluation = actor.evaluate(3, seed=1)
        assert len(episodes) == 3
        assert isinstance(evaluation, Evaluation)
        _, unsent = actor.drain()
        assert unsent == 0
    # The actor ends with 0, and its Deployment restarts it.
    run.await_pods(lambda pods: any(each.restarts and each.ready for each in pods), "actor")
    run.until(lambda status: len(acting(status)) == 1)


def test_the_run_is_stopped(run: ClusterRun, learner: LearnerClient) -> None:
    learner.stop()
    status = run.until(lambda status: status.state.final)
    assert status.state is RunState.STOPPED
    with pytest.raises(UnavailableError):
        learner.join("late", 1, "actor", "0")
