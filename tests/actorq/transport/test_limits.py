"""A real server with peers that send garbage, use too many resources, or stay silent."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actorq.client import LearnerClient
from actorq.config.sections import TransportConfig
from actorq.errors import ExhaustedError, UnavailableError
from actorq.transport.channels import open_channel
from actorq.transport.errors import translated
from actorq.transport.health_servicer import Health
from actorq.transport.options import ServerLimits
from actorq.transport.quota import Quota, address_of
from actorq.v1 import learner_pb2
from tests.actorq.transport.staged_servicer import SERVICE_NAME, TIMEOUT_S, StagedLearner, serving

HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
RUBBISH = b"\xff\xff\xff\xffnot a message"
# Well-formed except for a name that is not UTF-8.
NO_TEXT = b"\x0a\x02\xc3\x28"


def called(channel: grpc.Channel, path: str, streams_in: bool, streams_out: bool, data: bytes) -> None:
    """Send these bytes to a method and wait for its end."""
    kind = f"{'stream' if streams_in else 'unary'}_{'stream' if streams_out else 'unary'}"
    answer = getattr(channel, kind)(path)(iter([data]) if streams_in else data, timeout=TIMEOUT_S)
    if streams_out:
        list(answer)


METHODS = [
    (f"/{SERVICE_NAME}/Join", False, False),
    (f"/{SERVICE_NAME}/GetStatus", False, False),
    (f"/{SERVICE_NAME}/WatchStatus", False, True),
    (f"/{SERVICE_NAME}/StreamTrajectories", True, True),
    (f"/{HEALTH}/Check", False, False),
    (f"/{HEALTH}/Watch", False, True),
    (f"/{REFLECTION}/ServerReflectionInfo", True, True),
]


@pytest.mark.parametrize(("path", "streams_in", "streams_out"), METHODS)
@pytest.mark.parametrize("data", [RUBBISH, NO_TEXT])
def test_malformed_bytes_are_an_invalid_argument_without_a_traceback(
    path: str, streams_in: bool, streams_out: bool, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    if data is NO_TEXT and path.endswith(("GetStatus", "WatchStatus")):
        pytest.skip("unknown fields of a message are skipped")
    with serving(StagedLearner()) as stage, open_channel(stage.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            called(channel, path, streams_in, streams_out, data)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "protobuf" in caught.value.details()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def test_a_malformed_message_amid_a_stream_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    with serving(StagedLearner()) as stage, open_channel(stage.address) as channel:
        stream = channel.stream_stream(f"/{SERVICE_NAME}/StreamTrajectories")(iter([b"", RUBBISH]), timeout=TIMEOUT_S)
        assert next(stream) == b""
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.exc_info]


def test_health_answers_at_the_limit_of_open_calls() -> None:
    limits = ServerLimits(open_calls=2)

    async def wait() -> None:
        await asyncio.Event().wait()

    with (
        serving(StagedLearner(wait), limits=limits) as stage,
        LearnerClient(stage.address) as client,
    ):
        watching = client.stub.WatchStatus(learner_pb2.WatchStatusRequest(), timeout=TIMEOUT_S)
        next(watching)
        with pytest.raises(ExhaustedError, match=" 1 open calls"):
            client.status()
        health = health_pb2_grpc.HealthStub(client.channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S).status == 1
        watching.cancel()


def test_a_call_that_ended_or_was_left_makes_room() -> None:
    with (
        serving(StagedLearner(), limits=ServerLimits(open_calls=2)) as stage,
        LearnerClient(stage.address) as client,
    ):
        for _ in range(20):
            client.status()
            with pytest.raises(UnavailableError), translated("learner"):
                called(client.channel, f"/{SERVICE_NAME}/Join", False, False, RUBBISH)
            watching = client.stub.WatchStatus(learner_pb2.WatchStatusRequest(), timeout=TIMEOUT_S)
            next(watching)
            watching.cancel()
            retried_until_there_is_room(client)


def retried_until_there_is_room(client: LearnerClient) -> None:
    """Wait: the server learns of a canceled call slightly later."""
    for _ in range(1000):
        try:
            client.status()
            return
        except ExhaustedError:
            continue
    raise AssertionError("a cancelled call still counts after a thousand others")


def test_one_address_uses_at_most_half_of_a_quota() -> None:
    quota = Quota(10)
    for port in range(5):
        quota.acquire(f"ipv4:10.0.0.1:{port}")
    with pytest.raises(ExhaustedError, match=r" 5 open calls .*address.*ipv4"):
        quota.acquire("ipv4:10.0.0.1:99")
    for port in range(5):
        quota.acquire(f"ipv4:10.0.0.2:{port}")
    with pytest.raises(ExhaustedError, match=" 10 open calls"):
        quota.acquire("ipv4:10.0.0.3:1")
    quota.release("ipv4:10.0.0.1:0")
    quota.acquire("ipv4:10.0.0.1:7")
    with pytest.raises(ExhaustedError, match=" 10 open calls"):
        quota.acquire("ipv4:10.0.0.3:1")


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.1:5000", "ipv4:10.0.0.1"), ("ipv6:%5B::1%5D:5000", "ipv6:%5B::1%5D"), ("unix:/x", "unix:/x")],
)
def test_an_address_is_a_peer_without_its_port(peer: str, address: str) -> None:
    assert address_of(peer) == address


@contextmanager
def connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    made = [socket.create_connection((host, int(port)), TIMEOUT_S) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


def until_closed(connection: socket.socket) -> bytes:
    """The server's output until it closes the connection; raises TimeoutError if it does not."""
    said = b""
    try:
        while data := connection.recv(4096):
            said += data
    except ConnectionError:
        pass
    return said


def test_closes_a_silent_connection() -> None:
    with (
        serving(StagedLearner(), limits=ServerLimits(handshake_s=0.2)) as stage,
        connections(stage.address, 3) as made,
    ):
        for connection in made:
            until_closed(connection)


def test_closes_connections_beyond_the_limit_and_keeps_others() -> None:
    with (
        serving(StagedLearner(), limits=ServerLimits(connections=2)) as stage,
        LearnerClient(stage.address) as client,
    ):
        client.status()
        with connections(stage.address, 4) as made:
            # The first connection uses the second place. The others get none.
            for connection in made[1:]:
                assert until_closed(connection) == b""
            assert client.status().run_id == "run"


def test_a_connection_without_a_call_is_closed_and_opened_again_for_the_next() -> None:
    async def call(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for _ in range(2):
                await health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
                while (state := channel.get_state()) is not grpc.ChannelConnectivity.IDLE:
                    await channel.wait_for_state_change(state)

    with serving(StagedLearner(), limits=ServerLimits(idle_s=0.2)) as stage:
        asyncio.run(asyncio.wait_for(call(stage.address), TIMEOUT_S))


def test_a_health_watcher_that_does_not_read_delays_no_other() -> None:
    async def watch() -> None:
        health = Health()
        health.set(["learner"], serving=True)
        watcher = health.Watch(health_pb2.HealthCheckRequest(service="learner"), None)
        # The watcher has one status, and does not read the next one.
        assert (await anext(watcher)).status == health_pb2.HealthCheckResponse.SERVING
        health.set(["learner"], serving=False)
        checked = await health.Check(health_pb2.HealthCheckRequest(service="learner"), None)
        assert checked.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await anext(watcher)).status == health_pb2.HealthCheckResponse.NOT_SERVING

    asyncio.run(watch())


def test_a_gateway_may_have_a_larger_share() -> None:
    quota = Quota(10, 8)
    for _ in range(8):
        quota.acquire("ipv4:10.0.0.1:1")
    with pytest.raises(ExhaustedError, match=r" 8 .*transport\.max_calls_per_address"):
        quota.acquire("ipv4:10.0.0.1:2")
    quota.acquire("ipv4:10.0.0.2:1")
    assert TransportConfig(max_calls=16, max_calls_per_address=64).limits.calls_of_address == 64
    assert TransportConfig(max_calls=8192).limits.connections == 8192
