"""Messages of a publication before its blobs: the publisher, the headers, the quantizer's state."""

from dataclasses import dataclass, replace

from google.protobuf.timestamp_pb2 import Timestamp

from actorq.domain import limits
from actorq.domain.lineage import MAX_LINEAGE, UNCHECKED, Lineage
from actorq.errors import InvalidInputError
from actorq.v1 import quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Kind, Pair, many
from actorq.wire.tensors import TIME


@dataclass(frozen=True)
class Opening:
    """The opening of a publication: the run, the scheme of its actors, and the publishing learner."""

    run_id: str
    scheme: str
    learner: Lineage = UNCHECKED


@dataclass(frozen=True)
class CheckpointHeader:
    """A `Checkpoint` without its tensors."""

    version: int
    learner_step: int
    graph_digest: bytes
    snapshot_at: float


@dataclass(frozen=True)
class Ready:
    """A quantizer's state: the graph and version that it has, and the encodings of blobs that it takes."""

    newest_version: int
    graph_digests: tuple[bytes, ...]
    encodings: tuple[tensor_pb2.BlobEncoding, ...]


_OPENING = Pair(
    quantizer_pb2.PublishOpen,
    Opening,
    {bounds.name: "run_id", bounds.optional_name: "scheme"},
    prefix="open.",
    peer="a learner",
)
_LEARNER = Pair(
    quantizer_pb2.PublishOpen,
    Lineage,
    {bounds.epoch: "epoch", many(bounds.anything, MAX_LINEAGE): "processes=lineage"},
    prefix="open.",
)


def opening_to_proto(opening: Opening) -> quantizer_pb2.PublishOpen:
    """Encode the opening of a publication."""
    return _OPENING.to_proto(opening, epoch=opening.learner.epoch, lineage=opening.learner.processes)


def opening_from_proto(message: quantizer_pb2.PublishOpen) -> Opening:
    """Decode the opening of a publication. Raises ConflictError for another contract."""
    return replace(_OPENING.from_proto(message), learner=_LEARNER.from_proto(message))


def _snapshot_at(what: str, message: Timestamp) -> float:
    if message == Timestamp():
        raise InvalidInputError(f"{what}: must be the time of the snapshot, got none")
    return bounds.unix_seconds(what, message)


checkpoint_header_to_proto, checkpoint_header_from_proto = Pair(
    quantizer_pb2.CheckpointHeader,
    CheckpointHeader,
    {
        bounds.between(1, limits.MAX_VERSION): "version",
        bounds.count: "learner_step",
        bounds.digest: "graph_digest",
        Kind(TIME.encode, _snapshot_at): "snapshot_at",
    },
    prefix="checkpoint.",
).both

# Unknown encodings are kept.
ENCODINGS = many(bounds.anything, limits.MAX_ENCODINGS)
ready_to_proto, ready_from_proto = Pair(
    quantizer_pb2.PublishReady,
    Ready,
    {
        bounds.version: "newest_version",
        many(bounds.digest, limits.MAX_GRAPH_DIGESTS): "graph_digests",
        ENCODINGS: "encodings",
    },
    prefix="ready.",
    peer="the quantizer",
).both
