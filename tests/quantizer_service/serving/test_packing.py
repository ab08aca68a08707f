"""Sparse policies are sent packed on both links, to peers that accept it."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.policy import Checkpoint, Policy, Variant
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.payload.blobs import ENCODINGS, BlobAssembler, split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2
from quantizer_service.servicer import QuantizerServicer
from quantizer_service.serving.policy_stream import EncodedPolicy, StreamedPolicies, policy_messages
from quantizer_service.store.policy_files import encode_tensors
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint, random_parameters
from tests.quantizer_service.quantizer_server import SOURCE as DENSE_SOURCE
from tests.quantizer_service.quantizer_server import Publisher, opened, running_quantizer, running_relay
from tests.quantizer_service.scripted_upstream import policy

SOURCE = mlp(256, 256)
Responses = list[quantizer_pb2.WatchPoliciesResponse]


def sparse(version: int = 1) -> Checkpoint:
    parameters, rng = random_parameters(SOURCE, version), np.random.default_rng(version)
    for array in parameters.values():
        array[rng.random(array.shape) < (0.95 if array.ndim > 1 else 0)] = 0
    return checkpoint(SOURCE, version, parameters=parameters)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[QuantizerClient]:
    with running_quantizer(tmp_path / "store") as address, QuantizerClient(address) as client:
        publisher = Publisher(client)
        assert list(publisher.open().encodings) == list(ENCODINGS)
        publisher.send_graph(SOURCE)
        publisher.publish(sparse())
        yield client


def watched(client: QuantizerClient, encodings: tuple[int, ...]) -> Responses:
    """The messages of one policy."""
    request = quantizer_pb2.WatchPoliciesRequest(scheme="int8", encodings=encodings)  # type: ignore[arg-type]
    call, responses, size = client.stub.WatchPolicies(request), [], 0
    for response in call:
        responses.append(response)
        size += len(response.part.chunk)
        if len(responses) > 2 and size == responses[1].part.header.size_bytes:
            call.cancel()
            return responses
    raise AssertionError("the stream ended")


def model_of(responses: Responses) -> bytes | None:
    assembler = BlobAssembler(1)
    return [assembler.add(response.part) for response in responses[1:]][-1]


def test_a_sparse_policy_is_packed_only_for_watchers_that_accept_it(client: QuantizerClient) -> None:
    packed, plain = watched(client, ENCODINGS), watched(client, ())

    assert packed[0] == plain[0]
    assert packed[1].part.header.encoding == tensor_pb2.BLOB_ENCODING_SPARSE
    assert plain[1].part.header.encoding == tensor_pb2.BLOB_ENCODING_UNSPECIFIED
    assert model_of(packed) == model_of(plain) == client.get("int8").model
    assert sum(map(len, map(bytes, [part.SerializeToString() for part in packed]))) < 0.7 * len(
        client.get("int8").model
    )


def test_a_requested_policy_is_packed_only_for_callers_that_accept_it(client: QuantizerClient) -> None:
    def got(*encodings: int) -> int:
        request = quantizer_pb2.GetPolicyRequest(scheme="fp32", encodings=encodings)  # type: ignore[arg-type]
        return int(list(client.stub.GetPolicy(request))[1].part.header.encoding)

    assert (got(), got(*ENCODINGS)) == (0, tensor_pb2.BLOB_ENCODING_SPARSE)


def test_an_unknown_encoding_is_never_sent(client: QuantizerClient) -> None:
    assert watched(client, (99,))[1].part.header.encoding == tensor_pb2.BLOB_ENCODING_UNSPECIFIED
    assert watched(client, (*ENCODINGS, 99))[1].part.header.encoding == tensor_pb2.BLOB_ENCODING_SPARSE


def test_a_relay_forwards_packed_policies_and_unpacks_them_for_other_watchers(client: QuantizerClient) -> None:
    with running_relay(client.peer.split()[-1]) as address, QuantizerClient(address) as relayed:
        assert next(relayed.watch("int8")) == client.get("int8")
        assert watched(relayed, ENCODINGS) == watched(client, ENCODINGS)
        assert watched(relayed, ()) == watched(client, ())


def test_dense_policies_travel_as_they_are(tmp_path: Path) -> None:
    with running_quantizer(tmp_path / "dense") as address, QuantizerClient(address) as client:
        opened(client, versions=1)
        assert watched(client, ENCODINGS)[1].part.header.encoding == tensor_pb2.BLOB_ENCODING_UNSPECIFIED
        assert DENSE_SOURCE.digest == client.get("int8").descriptor.graph_digest


def test_a_checkpoint_may_come_packed(tmp_path: Path) -> None:
    version = sparse()
    with running_quantizer(tmp_path / "packed") as address, QuantizerClient(address) as client:
        publisher = Publisher(client)
        publisher.open()
        publisher.send_graph(SOURCE)
        header = quantizer_pb2.CheckpointHeader(
            version=1, learner_step=1, graph_digest=version.graph_digest, snapshot_at=wire.timestamp_to_proto(1.0)
        )
        publisher.send(checkpoint=header)
        parts = list(split_blob(encode_tensors(version), 1, encodings=ENCODINGS))
        for part in parts:
            publisher.send(part=part)
        publisher.answer()

        assert parts[0].header.encoding == tensor_pb2.BLOB_ENCODING_SPARSE
        assert client.get("fp32").descriptor.fp32_size_bytes == sum(a.nbytes for a in version.parameters.values())


def test_a_decompression_bomb_ends_the_stream_and_changes_nothing(client: QuantizerClient) -> None:
    publisher = Publisher(client)
    publisher.open()
    header = quantizer_pb2.CheckpointHeader(
        version=2, learner_step=1, graph_digest=SOURCE.digest, snapshot_at=wire.timestamp_to_proto(1.0)
    )
    publisher.send(checkpoint=header)
    opening = next(split_blob(encode_tensors(sparse(2)), 2, encodings=ENCODINGS))
    opening.header.plain_size_bytes = 2**40
    publisher.send(part=opening)

    with pytest.raises(Exception, match="plain size"):
        publisher.answer()
    assert client.get("int8").descriptor.version == 1


def policy_of(client: QuantizerClient) -> Policy:
    return client.get("int8")


def test_a_plain_checkpoint_is_checked_against_its_announcement(client: QuantizerClient) -> None:
    policy = policy_of(client)
    messages = policy_messages(policy)
    plain = EncodedPolicy(policy.descriptor, messages).taken(())

    assert EncodedPolicy(policy.descriptor, plain).taken(()) is plain
    for form in (messages, plain):
        assembler = StreamedPolicies(Variant("int8"))
        deliveries = [assembler.add(message) for message in form]
        assert deliveries[-1] is not None
        assert deliveries[-1].messages == form


def test_a_packed_policy_larger_than_its_descriptor_says_is_refused(client: QuantizerClient) -> None:
    policy = policy_of(client)
    lying = Policy(replace(policy.descriptor, size_bytes=policy.descriptor.size_bytes + 1), policy.model)
    assembler = StreamedPolicies(Variant("int8"))
    *others, last = policy_messages(lying)
    for message in others:
        assembler.add(message)

    with pytest.raises(InvalidInputError, match="policy: "):
        assembler.add(last)


def test_messages_that_are_much_larger_than_their_chunks_are_refused(client: QuantizerClient) -> None:
    descriptor, header, *_ = policy_messages(policy_of(client))
    policies = StreamedPolicies(Variant("int8"))
    assert policies.add(descriptor) is None
    # Field 1000 with 2000 bytes, which no version of this program knows.
    with pytest.raises(ExhaustedError, match=r"1024 bytes .* 20"):
        policies.add(header + b"\xc2\x3e\xd0\x0f" + bytes(2000))


class OldPolicies:
    """Encodes a policy again for each caller, as for a version that is not the newest."""

    async def get(self, scheme: str, version: int) -> EncodedPolicy:
        rng = np.random.default_rng(0)
        mostly_zeros = (rng.integers(1, 256, 2**20) * (rng.random(2**20) < 0.1)).astype(np.uint8).tobytes()
        return EncodedPolicy.of(replace(policy(version), model=mostly_zeros))


@pytest.mark.parametrize("encodings", [ENCODINGS, ()])
def test_callers_that_read_one_policy_slowly_share_its_messages(encodings: tuple[int, ...]) -> None:
    async def two() -> tuple[list[bytes], list[bytes]]:
        servicer = QuantizerServicer(OldPolicies())  # type: ignore[arg-type]
        request = quantizer_pb2.GetPolicyRequest(scheme="int8", version=1, encodings=encodings)  # type: ignore[arg-type]
        calls = [servicer.GetPolicy(request, None) for _ in range(2)]
        begun = [[await anext(call)] for call in calls]
        first, second = [[*read, *[message async for message in call]] for read, call in zip(begun, calls, strict=True)]
        return first, second

    first, second = asyncio.run(two())

    assert len(first) == len(second) > 2
    assert all(one is other for one, other in zip(first, second, strict=True))
