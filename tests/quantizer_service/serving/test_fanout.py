"""Many watchers at once: the encodings, the waits, and the effect of a slow watcher on the others."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from actorq.client import QuantizerClient
from actorq.config.sections import QuantizerConfig
from actorq.domain.policy import Policy, PolicyGraph, Variant
from actorq.errors import NotFoundError
from actorq.telemetry.process_stats import measure_process
from actorq.transport.options import CHUNK_BYTES, CLIENT_OPTIONS
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from quantizer_service.emission.emitter import Emitter
from quantizer_service.serving.policy_stream import policy_messages
from quantizer_service.serving.publishers import Turn
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import DEADLINE_S, SOURCE, Publisher, opened, running_quantizer
from tests.quantizer_service.scripted_upstream import policy

# Larger than all that gRPC and the kernel buffer for a stream.
BIG = mlp(1500, 1500)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[QuantizerClient]:
    with running_quantizer(tmp_path / "store") as address, QuantizerClient(address) as client:
        yield client


def test_every_caller_gets_the_same_bytes_of_a_policy() -> None:
    watched = quantizer_pb2.WatchPoliciesResponse.DESCRIPTOR
    got = quantizer_pb2.GetPolicyResponse.DESCRIPTOR
    assert [(field.name, field.number, field.type, field.message_type) for field in watched.fields] == [
        (field.name, field.number, field.type, field.message_type) for field in got.fields
    ]


def test_health_and_reflection_work_beside_handlers_that_send_bytes(client: QuantizerClient) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    name = "actorq.v1.QuantizerService"
    assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
    (answer,) = reflection.ServerReflectionInfo(iter([request]))
    files = map(descriptor_pb2.FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    services = [service for file in files for service in file.service]
    methods = {method.name: method.output_type for service in services for method in service.method}
    assert methods["WatchPolicies"] == ".actorq.v1.WatchPoliciesResponse"
    assert methods["GetPolicy"] == ".actorq.v1.GetPolicyResponse"


def test_a_policy_is_a_descriptor_a_header_and_chunks() -> None:
    messages = [
        quantizer_pb2.WatchPoliciesResponse.FromString(message)
        for message in policy_messages(policy(3, size=CHUNK_BYTES + 5))
    ]
    assert messages[0].policy.version == messages[1].part.header.version == 3
    assert [len(message.part.chunk) for message in messages[2:]] == [CHUNK_BYTES, 5]


def test_all_who_get_a_scheme_of_a_version_share_its_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        emitter = Emitter(PolicyStore(tmp_path, 5, 5), QuantizerConfig())
        quantizer = Quantizer(emitter, lambda: measure_process("quantizer", "quantizer"))
        await quantizer.claim("run", "int8", Turn())
        await quantizer.add_graph(SOURCE)
        watches = [await quantizer.watch(Variant(scheme), 0) for scheme in ("int8", "fp32") * 10]
        for version in (1, 2, 3):
            await quantizer.publish(checkpoint(SOURCE, version), "int8", time.perf_counter())
            items = [await watch.next() for watch in watches]
            assert all(item is items[number % 2] for number, item in enumerate(items))
            for _ in range(5):
                assert await quantizer.get(Variant("int8")) is await quantizer.get(Variant("int8"), version) is items[0]

    asyncio.run(scenario())


class Reader:
    """A watcher with its own connection, which reads only when a test says so."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)])
        stub = quantizer_pb2_grpc.QuantizerServiceStub(self._channel)
        self._call: Any = stub.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(scheme="fp32"), timeout=DEADLINE_S)

    def read(self) -> quantizer_pb2.WatchPoliciesResponse:
        message: quantizer_pb2.WatchPoliciesResponse = next(self._call)
        return message

    def versions_until(self, newest: int) -> list[int]:
        """The versions that it is still sent."""
        seen: list[int] = []
        while not seen or seen[-1] < newest:
            message = self.read()
            if message.WhichOneof("payload") == "policy":
                seen.append(message.policy.version)
        return seen

    def close(self) -> None:
        self._channel.close()


@pytest.mark.parametrize("pieces", [0, 1], ids=["reads nothing", "reads a piece of each version"])
def test_a_slow_watcher_delays_no_other_and_skips_to_the_newest(tmp_path: Path, pieces: int) -> None:
    versions = 8
    with running_quantizer(tmp_path / "store") as address, QuantizerClient(address) as client:
        publisher = _opened(client, BIG)
        publisher.publish(checkpoint(BIG, 1))
        slow, fast = Reader(address), Reader(address)
        first = slow.read()
        assert (first.policy.version, fast.versions_until(1)) == (1, [1])
        assert first.policy.size_bytes > 16 * CHUNK_BYTES
        for version in range(2, versions + 1):
            for _ in range(pieces):
                slow.read()
            # Returns although the slow one still has most of version 1 to read.
            assert publisher.publish(checkpoint(BIG, version)).version == version
            assert fast.versions_until(version) == [version]

        # The client's own gRPC buffers some versions. A slow reader may find one or two between, and never all.
        seen = slow.versions_until(versions)
        assert seen == sorted(seen)
        assert len(seen) <= versions // 2
        slow.close()
        fast.close()


def test_with_auto_only_the_watched_schemes_are_emitted(client: QuantizerClient) -> None:
    publisher = Publisher(client)
    assert publisher.open(scheme="auto").newest_version == 0
    publisher.send_graph(SOURCE)

    unwatched = publisher.publish(checkpoint(SOURCE, 1))

    assert (unwatched.version, unwatched.policies, unwatched.watchers) == (1, (), 0)
    assert [(entry.version, entry.schemes) for entry in client.list()] == [(1, ())]
    watch = client.watch("fp32")
    assert next(watch).descriptor.version == 1
    assert client.get("int8").descriptor.version == 1

    watched = publisher.publish(checkpoint(SOURCE, 2))

    assert [(policy.version, policy.scheme) for policy in watched.policies] == [(2, "fp32")]
    assert next(watch).descriptor.version == 2
    assert [(entry.version, entry.schemes) for entry in client.list()] == [(2, ("fp32",)), (1, ("fp32", "int8"))]


def test_unwatched_versions_are_served_after_a_restart(tmp_path: Path) -> None:
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        publisher = Publisher(client)
        publisher.open(scheme="auto")
        publisher.send_graph(SOURCE)
        publisher.publish(checkpoint(SOURCE, 1))
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        assert next(client.watch("int8")).descriptor.version == 1


def test_auto_cannot_be_watched_or_requested(client: QuantizerClient) -> None:
    opened(client, versions=1)
    with pytest.raises(NotFoundError, match="'auto'"):
        client.get("auto")
    with pytest.raises(NotFoundError, match="'auto'"):
        next(client.watch("auto"))


def test_a_watcher_that_comes_while_a_version_is_emitted_gets_that_version(tmp_path: Path) -> None:
    emitting, goes_on = threading.Event(), threading.Event()

    class Held(Emitter):
        """Waits in the middle of emitting version 2."""

        def publish(self, checkpoint: Any, *arguments: Any) -> tuple[Policy, ...]:
            if checkpoint.version == 2:
                emitting.set()
                assert goes_on.wait(DEADLINE_S)
            return super().publish(checkpoint, *arguments)

    async def scenario() -> int:
        quantizer = Quantizer(Held(PolicyStore(tmp_path, 5, 5)), lambda: measure_process("x", "quantizer"))
        await quantizer.claim("run", "auto", Turn())
        await quantizer.add_graph(SOURCE)
        with await quantizer.watch(Variant("int8"), 0) as before:
            await quantizer.publish(checkpoint(SOURCE, 1), "auto", 0.0)
            await before.next()
        publication = asyncio.create_task(quantizer.publish(checkpoint(SOURCE, 2), "auto", 0.0))
        await asyncio.to_thread(emitting.wait, DEADLINE_S)
        # Version 1 is the newest that is served, and version 2 is emitted in no scheme.
        with await quantizer.watch(Variant("int8"), 1) as late:
            goes_on.set()
            found = await late.next()
            assert found is not None
            await publication
            return found.descriptor.version

    assert asyncio.run(scenario()) == 2


def _opened(client: QuantizerClient, source: PolicyGraph) -> Publisher:
    publisher = Publisher(client)
    publisher.open(scheme="fp32")
    publisher.send_graph(source)
    return publisher
