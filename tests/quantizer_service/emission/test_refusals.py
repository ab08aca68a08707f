"""Mistakes of publishers: each has its status, names the expected value, and changes nothing."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from actorq.client import QuantizerClient
from actorq.domain.contract import CONTRACT
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2, trajectory_pb2
from quantizer_service.serving.submissions import MAX_GRAPH_BYTES
from tests.quantizer_service.policy_graphs import dueling
from tests.quantizer_service.policy_runs import checkpoint, random_parameters
from tests.quantizer_service.quantizer_server import SOURCE, Publisher, opened, running_quantizer


@pytest.fixture
def client(tmp_path: Path) -> Iterator[QuantizerClient]:
    with running_quantizer(tmp_path / "store") as address, QuantizerClient(address) as client:
        yield client


def _send_two_headers(publisher: Publisher) -> None:
    publisher.send(checkpoint=_header(2))
    publisher.send(checkpoint=_header(2))


def _header(version: int, **fields: object) -> quantizer_pb2.CheckpointHeader:
    header = quantizer_pb2.CheckpointHeader(version=version, graph_digest=SOURCE.digest)
    header.snapshot_at.FromSeconds(1)
    for name, value in fields.items():
        setattr(header, name, value)
    return header


def _send_wrong_digest(publisher: Publisher) -> None:
    publisher.send(checkpoint=_header(2))
    header = tensor_pb2.BlobHeader(version=2, size_bytes=3, sha256=bytes(32))
    publisher.send(part=tensor_pb2.BlobPart(header=header))
    publisher.send(part=tensor_pb2.BlobPart(chunk=b"abc"))


def _send_too_big_a_graph(publisher: Publisher) -> None:
    publisher.send(graph=quantizer_pb2.GraphHeader(digest=bytes(32)))
    header = tensor_pb2.BlobHeader(size_bytes=MAX_GRAPH_BYTES + 1, sha256=bytes(32))
    publisher.send(part=tensor_pb2.BlobPart(header=header))


def _send_blob(publisher: Publisher, blob: bytes, version: int = 2) -> None:
    publisher.send(checkpoint=_header(2))
    for part in split_blob(blob, version):
        publisher.send(part=part)


def _send_renamed_graph(publisher: Publisher) -> None:
    publisher.send(graph=quantizer_pb2.GraphHeader(digest=bytes(32)))
    for part in split_blob(SOURCE.model):
        publisher.send(part=part)


def _with_parameter(name: str, array: np.ndarray) -> Callable[[Publisher], None]:
    wrong = checkpoint(SOURCE, 2, parameters={**random_parameters(SOURCE, 2), name: array})
    return lambda publisher: publisher.send_checkpoint(wrong)


INVALID, CONFLICT = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
WEIGHT = random_parameters(SOURCE, 2)["layers.0.weight"]

OPEN = quantizer_pb2.PublishOpen(run_id="run", contract=CONTRACT)
NO_EPISODES = trajectory_pb2.Evaluation(scheme="int8")
BAD_SUBMISSIONS: list[tuple[str, Callable[[Publisher], None], grpc.StatusCode, str]] = [
    ("opened twice", lambda p: p.send(open=OPEN), INVALID, "`open`"),
    ("empty message", lambda p: p.send(), INVALID, "none"),
    ("part of nothing", lambda p: p.send(part=tensor_pb2.BlobPart(chunk=b"x")), INVALID, "graph,"),
    ("header twice", _send_two_headers, INVALID, "checkpoint 2"),
    ("evaluation of nothing", lambda p: p.send(evaluation=NO_EPISODES), INVALID, "at least one"),
    ("version 0", lambda p: p.send(checkpoint=_header(0)), INVALID, "version: .*4611686018427387903, .*0"),
    ("short digest", lambda p: p.send(checkpoint=_header(2, graph_digest=b"x")), INVALID, "graph_digest: .*32 .*1"),
    ("no snapshot time", lambda p: p.send(checkpoint=quantizer_pb2.CheckpointHeader(
        version=2, graph_digest=SOURCE.digest)), INVALID, "snapshot_at"),
    ("wrong digest", _send_wrong_digest, INVALID, "sha256"),
    ("version of the blob", lambda p: _send_blob(p, b"x", 3), INVALID, "version 2, .*3"),
    ("no safetensors", lambda p: _send_blob(p, b"nonsense"), INVALID, "safetensors"),
    ("graph of another digest", _send_renamed_graph, INVALID, "SHA-256"),
    ("graph too big", _send_too_big_a_graph, grpc.StatusCode.RESOURCE_EXHAUSTED, "8388608"),
    ("NaN", _with_parameter("layers.0.weight", WEIGHT * np.nan), INVALID, r"'layers\.0\.weight': .*finite"),
    ("wrong shape", _with_parameter("layers.0.weight", WEIGHT.T.copy()), INVALID, r"layers\.0\.weight.*\[5, 16\]"),
    ("wrong dtype", _with_parameter("layers.0.weight", WEIGHT.astype(np.float16)), INVALID, r"0\.weight.*float16"),
    ("unknown parameter", _with_parameter("more.weight", WEIGHT), INVALID, r"unexpected \['more\.weight'\]"),
    ("no calibration", lambda p: p.send_checkpoint(checkpoint(SOURCE, 2, calibration={})), INVALID, "missing .*obs"),
    ("same version", lambda p: p.send_checkpoint(checkpoint(SOURCE, 1)), CONFLICT, "version above 1, .*1"),
    ("unknown graph", lambda p: p.send_checkpoint(checkpoint(dueling(), 2)), CONFLICT, dueling().digest.hex()[:8]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("submit", "status", "fact"), [case[1:] for case in BAD_SUBMISSIONS], ids=[case[0] for case in BAD_SUBMISSIONS]
)
def test_a_bad_submission_has_its_status_and_changes_nothing(
    client: QuantizerClient, submit: Callable[[Publisher], None], status: grpc.StatusCode, fact: str
) -> None:
    publisher = opened(client, versions=1)
    newest = client.get("int8")
    # After the read, which may store another encoding of the version.
    listed = client.list()

    submit(publisher)
    with pytest.raises(grpc.RpcError) as caught:
        publisher.answer()

    assert caught.value.code() == status
    assert re.search(fact, caught.value.details()), caught.value.details()
    assert client.list() == listed
    assert client.get("int8") == newest
    again = Publisher(client)
    assert again.open().newest_version == 1
    assert again.publish(checkpoint(SOURCE, 2)).version == 2


@pytest.mark.parametrize(
    ("run_id", "scheme", "status", "fact"),
    [
        ("another", "int8", CONFLICT, "'run'.*--store"),
        ("", "int8", INVALID, r"open\.run_id: "),
        ("run", "int2", grpc.StatusCode.NOT_FOUND, "int4, .*'int2'"),
    ],
)
def test_a_wrong_opening_is_refused(
    client: QuantizerClient, run_id: str, scheme: str, status: grpc.StatusCode, fact: str
) -> None:
    opened(client, versions=1)

    with pytest.raises(grpc.RpcError) as caught:
        Publisher(client).open(run_id, scheme)

    assert caught.value.code() == status
    assert re.search(fact, caught.value.details())


def test_the_opening_comes_first(client: QuantizerClient) -> None:
    publisher = Publisher(client)
    publisher.send_graph(SOURCE)

    with pytest.raises(grpc.RpcError) as caught:
        publisher.answer()

    assert caught.value.code() == INVALID
    assert re.search("`open` .*`graph`", caught.value.details())
