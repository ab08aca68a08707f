"""Checksums of messages detect a changed byte in either direction, on a real connection."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorq.client import LearnerClient
from actorq.errors import CorruptedError, InvalidInputError, UnavailableError
from actorq.transport.errors import translated
from actorq.transport.payload.checksums import SealedCall, seal, unseal
from actorq.v1 import learner_pb2, learner_pb2_grpc
from tests.actorq.transport.staged_servicer import TIMEOUT_S, StagedLearner, serving


@given(st.binary(max_size=300))
def test_unsealing_restores_a_sealed_message(data: bytes) -> None:
    assert unseal(seal(data)) == data


@given(st.binary(max_size=100), st.data())
def test_detects_any_changed_bit_of_a_sealed_message(data: bytes, draw: st.DataObject) -> None:
    sealed = bytearray(seal(data))
    bit = draw.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptedError):
        unseal(bytes(sealed))


@dataclass(frozen=True)
class Details(grpc.HandlerCallDetails):
    """A server's knowledge of a call before its first message."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = (("actorq-checksum", "crc32"),)


def test_a_sealed_call_refuses_plain_and_empty_messages() -> None:
    call = SealedCall(Details("/actorq.v1.LearnerService/Join"), bytes, bytes)
    assert call.deserialize(seal(b"first")) == b"first"
    for changed in (b"plain", b""):
        with pytest.raises(CorruptedError, match="CRC-32"):
            call.deserialize(changed)
    assert bytes(unseal(call.serialize(b"answer"))) == b"answer"


def test_streams_of_policies_are_sealed_upward_only() -> None:
    call = SealedCall(Details("/actorq.v1.QuantizerService/WatchPolicies"), bytes, None)
    assert call.deserialize(seal(b"request")) == b"request"
    assert call.serialize(b"policy") == b"policy"


def test_plain_calls_get_plain_answers() -> None:
    with serving(StagedLearner()) as stage, grpc.insecure_channel(stage.address) as channel:
        stub = learner_pb2_grpc.LearnerServiceStub(channel)
        assert stub.GetStatus(learner_pb2.GetStatusRequest(), timeout=TIMEOUT_S).HasField("status")


@contextmanager
def changing_link(target: str, change: Callable[[bytes, bool], bytes]) -> Iterator[str]:
    """A TCP proxy. `change` may modify each piece, and knows whether it comes from the client."""
    host, _, port = target.rpartition(":")
    loop = asyncio.new_event_loop()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upward: bool) -> None:
        while data := await reader.read(65536):
            writer.write(change(data, upward))
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, onward, True), carry(onward_reader, writer, False), return_exceptions=True)

    async def end() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    listener = socket.create_server(("127.0.0.1", 0))
    server = loop.run_until_complete(asyncio.start_server(serve, sock=listener))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


NAME = "an-actor-with-a-name"


@pytest.mark.parametrize("direction", ["request", "response"])
def test_detects_a_byte_changed_in_transit(direction: str) -> None:
    def change(data: bytes, upward: bool) -> bytes:
        return data.replace(NAME.encode(), NAME.upper().encode()) if upward == (direction == "request") else data

    with (
        serving(StagedLearner()) as stage,
        changing_link(stage.address, change) as address,
        LearnerClient(address) as client,
        pytest.raises(grpc.RpcError) as caught,
    ):
        client.stub.Join(learner_pb2.JoinRequest(actor_name=NAME), timeout=TIMEOUT_S)
    expected = grpc.StatusCode.DATA_LOSS if direction == "request" else grpc.StatusCode.INTERNAL
    assert caught.value.code() is expected


def test_retries_after_a_status_changed_in_transit() -> None:
    def change(data: bytes, upward: bool) -> bytes:
        return data if upward else data.replace(b"expected 3", b"expected 4")

    async def refuse() -> None:
        raise InvalidInputError("rewards: expected 3")

    with (
        serving(StagedLearner(refuse)) as stage,
        changing_link(stage.address, change) as address,
        LearnerClient(address) as client,
        pytest.raises(UnavailableError, match=r"expected 4.*connection"),
    ):
        client.status()


def test_retries_after_a_seal_changed_in_transit() -> None:
    def change(data: bytes, upward: bool) -> bytes:
        return data.replace(b"actorq-checksum", b"actorq-checksun") if upward else data

    with (
        serving(StagedLearner()) as stage,
        changing_link(stage.address, change) as address,
        LearnerClient(address) as client,
        pytest.raises(UnavailableError, match=r"message.*connection"),
        translated(client.peer),
    ):
        client.stub.Join(learner_pb2.JoinRequest(actor_name=NAME), timeout=TIMEOUT_S)
