"""A server from the outside: health, reflection, limits, its port, and its end."""

import asyncio
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from actorq.client import LearnerClient
from actorq.domain.limits import MAX_MESSAGE_BYTES
from actorq.errors import ExhaustedError, UserError
from actorq.transport.channels import open_channel
from actorq.transport.server import Server
from actorq.v1 import learner_pb2, learner_pb2_grpc
from tests.actorq.transport.staged_servicer import SERVICE_NAME, TIMEOUT_S, StagedLearner, serving

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("service", ["", SERVICE_NAME])
def test_health_is_serving_until_the_server_stops(service: str) -> None:
    with serving(StagedLearner()) as stage, open_channel(stage.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request, timeout=TIMEOUT_S).status == SERVING
        statuses = health.Watch(request, timeout=TIMEOUT_S)
        assert next(statuses).status == SERVING
        stage.perform(stage.server.say_not_serving())
        assert next(statuses).status == NOT_SERVING
        assert health.Check(request, timeout=TIMEOUT_S).status == NOT_SERVING
        stage.perform(stage.server.stop(grace_s=0.0))
        with pytest.raises(grpc.RpcError):
            next(statuses)


def test_a_server_is_alive_before_its_service_is_ready() -> None:
    async def run() -> list[tuple[int, int]]:
        server = Server("127.0.0.1:0")
        address = await server.start([SERVICE_NAME], ready=False)
        seen = []
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            # It does not become ready again once it stops.
            for step in (asyncio.sleep(0), server.say_ready(), server.say_not_serving(), server.say_ready()):
                await step
                alive, ready = [
                    (await health.Check(health_pb2.HealthCheckRequest(service=service))).status
                    for service in ("", SERVICE_NAME)
                ]
                seen.append((alive, ready))
        await server.stop(grace_s=0.0)
        return seen

    stopped = (NOT_SERVING, NOT_SERVING)
    assert asyncio.run(run()) == [(SERVING, NOT_SERVING), (SERVING, SERVING), stopped, stopped]


def test_a_stopping_server_is_not_serving_before_it_ends_its_calls() -> None:
    with serving(StagedLearner()) as stage, open_channel(stage.address) as channel:
        statuses = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        next(statuses)
        stopping = stage.begin(stage.server.stop(grace_s=TIMEOUT_S))
        assert next(statuses).status == NOT_SERVING
        statuses.cancel()
        stopping.result(TIMEOUT_S)


def test_health_of_a_service_that_is_not_there_is_not_found() -> None:
    with serving(StagedLearner()) as stage, open_channel(stage.address) as channel:
        request = health_pb2.HealthCheckRequest(service="actorq.v1.Nobody")
        with pytest.raises(grpc.RpcError) as caught:
            health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_server_that_stops_waits_for_the_handlers_of_calls_that_it_cancels(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC logs a traceback for each handler that runs when the event loop is closed."""
    cleaned_up: list[int] = []

    async def wait() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            cleaned_up.append(1)

    begun = threading.Event()
    with serving(StagedLearner(wait)) as stage, grpc.insecure_channel(stage.address) as channel:
        stub = learner_pb2_grpc.LearnerServiceStub(channel)
        call = stub.GetStatus.future(learner_pb2.GetStatusRequest(), timeout=TIMEOUT_S)
        assert begun.wait(TIMEOUT_S)
        stage.perform(stage.server.stop(grace_s=0.0))
        assert cleaned_up == [1]
        with pytest.raises(grpc.RpcError):
            call.result()
    assert caplog.messages == []


def test_reflection_lists_the_services_and_describes_ours() -> None:
    with serving(StagedLearner()) as stage, open_channel(stage.address) as channel:
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAME),
        ]
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed, described = stub.ServerReflectionInfo(iter(requests), timeout=TIMEOUT_S)
    assert {service.name for service in listed.list_services_response.service} == {
        SERVICE_NAME,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert any(b"LearnerService" in file for file in described.file_descriptor_response.file_descriptor_proto)


def test_a_running_call_may_finish_while_the_server_stops() -> None:
    begun, go_on = threading.Event(), asyncio.Event()

    async def finish_when_told() -> None:
        begun.set()
        await go_on.wait()

    async def tell() -> None:
        go_on.set()

    with (
        serving(StagedLearner(finish_when_told)) as stage,
        LearnerClient(stage.address, deadline_s=TIMEOUT_S) as client,
    ):
        finished: list[str] = []
        caller = threading.Thread(target=lambda: finished.append(client.status().run_id))
        caller.start()
        assert begun.wait(TIMEOUT_S)
        health = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert next(health).status == SERVING
        stopping = stage.begin(stage.server.stop(grace_s=TIMEOUT_S))
        assert next(health).status == NOT_SERVING
        health.cancel()
        assert not stopping.done()
        stage.perform(tell())
        caller.join(TIMEOUT_S)
        stopping.result(TIMEOUT_S)
        assert finished == ["run"]


def test_a_port_in_use_is_the_users_error() -> None:
    with serving(StagedLearner()) as stage, pytest.raises(UserError, match=f"--listen.*{stage.address}.*port 0"):
        asyncio.run(started(stage.address))


@pytest.mark.parametrize("listen", ["", "50051", ":50051", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "h:65536"])
def test_an_address_to_listen_on_must_be_host_and_port(listen: str) -> None:
    with pytest.raises(UserError, match=f"--listen.*HOST:PORT.*{listen!r}"):
        asyncio.run(started(listen))


@pytest.mark.parametrize("address", ["", "50051", ":50051", "127.0.0.1", "127.0.0.1:0", "host:-1", "h:65536", "h:²"])
def test_an_address_to_call_must_be_host_and_port(address: str) -> None:
    with pytest.raises(UserError, match=f"address.*HOST:PORT.*{address!r}"):
        open_channel(address)


def test_an_ipv6_address_to_call_needs_brackets() -> None:
    with pytest.raises(UserError, match=r"address.*brackets.*'::1:50051'"):
        open_channel("::1:50051")
    open_channel("[::1]:50051").close()


async def started(listen: str) -> None:
    server = Server(listen)
    try:
        await server.start([])
    finally:
        await server.stop(grace_s=0.0)


def test_a_message_beyond_the_limit_does_not_leave_the_client() -> None:
    with serving(StagedLearner()) as stage, LearnerClient(stage.address) as client:
        with pytest.raises(ExhaustedError, match="larger than max"):
            client.join("a" * MAX_MESSAGE_BYTES, 1, "actor", "0")
        request = learner_pb2.JoinRequest(actor_name="a" * (MAX_MESSAGE_BYTES - 1_000))
        assert client.stub.Join(request, timeout=TIMEOUT_S).run.run_id[:1] == "a"


def test_a_message_beyond_the_limit_is_refused_by_the_server() -> None:
    request = bytes([10]) + _varint(MAX_MESSAGE_BYTES) + b"a" * MAX_MESSAGE_BYTES
    with serving(StagedLearner()) as stage, grpc.insecure_channel(stage.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"/{SERVICE_NAME}/Join")(request, timeout=TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_answer_beyond_the_limit_does_not_arrive() -> None:
    with serving(StagedLearner(path="/" * MAX_MESSAGE_BYTES)) as stage, LearnerClient(stage.address) as client:
        with pytest.raises(ExhaustedError, match="larger than max"):
            client.save_checkpoint()
        assert client.status().run_id == "run"


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))
