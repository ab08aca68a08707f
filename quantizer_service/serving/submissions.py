"""Assembles a publisher's messages into graphs, checkpoints and evaluations, and checks their order."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from actorq import wire
from actorq.domain.limits import MAX_BLOB_BYTES
from actorq.domain.policy import Checkpoint, PolicyGraph, SealedBytes
from actorq.domain.trajectory import Evaluation
from actorq.errors import InvalidInputError
from actorq.quantization.signatures import read_graph
from actorq.transport.payload.blobs import BlobAssembler
from actorq.v1 import quantizer_pb2
from actorq.wire import bounds
from quantizer_service.store.policy_files import decode_tensors

# Graphs have no weights. The largest known graphs have some hundred kilobytes.
MAX_GRAPH_BYTES = 8 * 1024**2

Submission = wire.Opening | PolicyGraph | Checkpoint | Evaluation


class _Announced(NamedTuple):
    what: str
    assembler: BlobAssembler
    finish: Callable[[SealedBytes], Submission]


class SubmissionAssembler:
    """Assembles a publisher's messages: an opening, then graphs and checkpoints in parts, and evaluations.

    Raises InvalidInputError for a message that is out of order or malformed. After an error, the assembler accepts no
    further messages.
    """

    def __init__(self) -> None:
        self._opened = False
        self._announced: _Announced | None = None

    def add(self, request: quantizer_pb2.PublishCheckpointsRequest) -> Submission | None:
        """Add the next message. Returns the submission if it is complete."""
        kind = request.WhichOneof("payload")
        if self._opened == (kind == "open"):
            expected = "a graph, checkpoint, part or evaluation" if self._opened else "`open` first"
            raise InvalidInputError(f"publication: expected {expected}, got {_named(kind)}")
        if (self._announced is not None) != (kind == "part"):
            parts = self._announced and f"the parts of {self._announced.what}"
            expected = parts or "a graph, checkpoint or evaluation"
            raise InvalidInputError(f"publication: expected {expected}, got {_named(kind)}")
        match kind:
            case "open":
                self._opened = True
                return wire.opening_from_proto(request.open)
            case "evaluation":
                return wire.evaluation_from_proto(request.evaluation)
            case "part":
                return self._add(request)
            case "graph":
                digest = bounds.digest("graph.digest", request.graph.digest)
                self._announced = _Announced("the graph", BlobAssembler(0, MAX_GRAPH_BYTES), partial(_graph, digest))
            case "checkpoint":
                header = wire.checkpoint_header_from_proto(request.checkpoint)
                what = f"checkpoint {header.version}"
                assembler = BlobAssembler(header.version, MAX_BLOB_BYTES)
                self._announced = _Announced(what, assembler, partial(_checkpoint, header, what))
            case _:
                raise InvalidInputError("publication: expected a payload, got none")
        return None

    def end(self) -> None:
        """End the stream. Raises InvalidInputError for an incomplete graph or checkpoint."""
        if self._announced is not None:
            expected = f"expected the parts of {self._announced.what}"
            raise InvalidInputError(f"publication: {expected}, got the end of the stream; they are dropped")

    def _add(self, request: quantizer_pb2.PublishCheckpointsRequest) -> Submission | None:
        assert self._announced is not None
        _, assembler, finish = self._announced
        blob = assembler.add(request.part)
        if blob is None:
            return None
        self._announced = None
        return finish(SealedBytes(blob, assembler.sha256))


def _graph(digest: bytes, blob: SealedBytes) -> PolicyGraph:
    if blob.sha256 != digest:
        raise InvalidInputError(
            f"graph: expected a blob with the SHA-256 {digest.hex()} of its header, got {blob.sha256.hex()}"
        )
    return read_graph(blob.data)


def _checkpoint(header: wire.CheckpointHeader, what: str, blob: SealedBytes) -> Checkpoint:
    content = decode_tensors(blob.data, what)
    return Checkpoint(**vars(header), **content._asdict(), received=blob)


def _named(kind: str | None) -> str:
    return "an empty message" if kind is None else f"`{kind}`"
