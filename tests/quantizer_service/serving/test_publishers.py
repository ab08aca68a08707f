"""Several publishers, and calls whose arguments are out of bounds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from actorq.client import QuantizerClient
from actorq.errors import UnavailableError
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2
from quantizer_service.servicer import QuantizerServicer
from tests.builders.service_process import service_process
from tests.quantizer_service.emission.test_high_water import ready, serving
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import SOURCE, Publisher, opened, running_quantizer

MIB = 1024**2
PUBLISHERS, UPLOAD_BYTES = 10, 64 * MIB


@pytest.fixture
def client(tmp_path: Path) -> Iterator[QuantizerClient]:
    with running_quantizer(tmp_path / "store") as address, QuantizerClient(address) as client:
        yield client


def test_the_newest_publisher_is_served_and_the_previous_one_gets_an_error(client: QuantizerClient) -> None:
    first = opened(client, versions=1)
    second = Publisher(client)

    assert second.open().newest_version == 1

    with pytest.raises(grpc.RpcError) as ended:
        first.answer()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "another publisher" in ended.value.details()
    assert second.publish(checkpoint(SOURCE, 2)).version == 2


def test_a_publisher_of_another_run_does_not_replace_the_publisher(client: QuantizerClient) -> None:
    first = opened(client, versions=1)

    with pytest.raises(grpc.RpcError) as refused:
        Publisher(client).open("another run")

    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert first.publish(checkpoint(SOURCE, 2)).version == 2


def test_unfinished_submissions_are_kept_of_only_one_publisher(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with service_process("quantizer", "--store", store) as process, QuantizerClient(process.address) as client:
        opened(client, versions=1)
        memory = psutil.Process(process.pid).memory_info
        before = memory().rss
        publishers = []
        for _ in range(PUBLISHERS):
            publisher = Publisher(client)
            publisher.open()
            publishers.append(publisher)
            header = quantizer_pb2.CheckpointHeader(version=2, graph_digest=SOURCE.digest)
            header.snapshot_at.FromSeconds(1)
            publisher.send(checkpoint=header)
            *parts, _ = split_blob(bytes(UPLOAD_BYTES), 2)
            for part in parts:
                publisher.send(part=part)
        *replaced, newest = publishers
        for publisher in replaced:
            with pytest.raises(grpc.RpcError):
                publisher.answer()
        newest.send(part=tensor_pb2.BlobPart())
        with pytest.raises(grpc.RpcError):
            newest.answer()

        assert memory().rss - before < 3 * UPLOAD_BYTES
        assert opened(client).publish(checkpoint(SOURCE, 2)).version == 2


@pytest.mark.parametrize("token", ["9" * 5_000, "9" * 20, "-1", "1e3", "²"])
def test_an_invalid_page_token_is_refused(client: QuantizerClient, token: str) -> None:
    opened(client, versions=1)

    with pytest.raises(grpc.RpcError) as refused:
        client.stub.ListPolicies(quantizer_pb2.ListPoliciesRequest(page_token=token))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "page_token" in refused.value.details()
    assert len(refused.value.details()) < 300


def hold(client: QuantizerClient, version: int, seconds: int) -> int:
    request = quantizer_pb2.HoldPolicyRequest(version=version)
    request.duration.seconds = seconds
    granted: int = client.stub.HoldPolicy(request).granted.seconds
    return granted


@pytest.mark.parametrize("seconds", [-(2**62), -1, 0])
def test_a_hold_of_0_seconds_is_refused(client: QuantizerClient, seconds: int) -> None:
    opened(client, versions=1)

    with pytest.raises(grpc.RpcError) as refused:
        hold(client, 1, seconds)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_hold_of_a_year_is_granted_for_an_hour(client: QuantizerClient) -> None:
    opened(client, versions=1)

    assert hold(client, 1, 365 * 86_400) == 3600


@pytest.mark.parametrize("version", [2, 2**63, 2**64 - 1])
def test_a_missing_version_is_not_found(client: QuantizerClient, version: int) -> None:
    opened(client, versions=1)

    with pytest.raises(grpc.RpcError) as get:
        list(client.stub.GetPolicy(quantizer_pb2.GetPolicyRequest(version=version, scheme="int8")))
    with pytest.raises(grpc.RpcError) as held:
        hold(client, version, 10)

    for refused in (get, held):
        assert refused.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)


class Call:
    """The server's side of a call, as gRPC gives it to a servicer."""

    def __init__(self) -> None:
        self.on_done: list[Callable[[Any], None]] = []
        self.add_done_callback = self.on_done.append

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Confirm the stream."""


def test_a_stream_that_has_ended_leaves_neither_a_watcher_nor_a_task(tmp_path: Path) -> None:
    async def nothing() -> AsyncIterator[quantizer_pb2.PublishCheckpointsRequest]:
        return
        yield

    async def scenario() -> None:
        quantizer = serving(ready(tmp_path))
        servicer, call = QuantizerServicer(quantizer), Call()
        watch = aiter(servicer.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(scheme="int8"), call))
        watching = asyncio.ensure_future(anext(watch))
        while not call.on_done:
            await asyncio.sleep(0)
        assert list(quantizer.policies.watchers_by_variant.values()) == [1]
        for done in call.on_done:
            done(None)
        assert quantizer.policies.variants == ()
        with pytest.raises(UnavailableError, match="watch again later"):
            await watching
        assert [answer async for answer in servicer.PublishCheckpoints(nothing(), call)] == []
        # A cancelled task ends in the next turns of the loop.
        for _ in range(10):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
