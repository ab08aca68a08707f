"""Messages of a publication before its blobs: the publisher, the headers, the quantizer's state."""

from collections.abc import Sequence
from dataclasses import dataclass

from actorq.domain import limits
from actorq.domain.contract import CONTRACT, check_contract
from actorq.domain.lineage import MAX_LINEAGE, UNCHECKED, Lineage
from actorq.errors import InvalidInputError
from actorq.v1 import quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields, each
from actorq.wire.tensors import timestamp_to_proto


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
    topology: bytes
    snapshot_at: float


@dataclass(frozen=True)
class Ready:
    """A quantizer's state: the graph and version that it has, and the encodings of blobs that it takes."""

    newest_version: int
    topologies: tuple[bytes, ...]
    encodings: tuple[tensor_pb2.BlobEncoding, ...]


def opening_to_proto(opening: Opening) -> quantizer_pb2.PublishOpen:
    """Encode the opening of a publication."""
    learner = opening.learner
    return quantizer_pb2.PublishOpen(
        run_id=opening.run_id,
        scheme=opening.scheme,
        epoch=learner.epoch,
        lineage=learner.processes,
        contract=CONTRACT,
    )


_OPENING = Fields(quantizer_pb2.PublishOpen, "open.", {bounds.name: "run_id", bounds.optional_name: "scheme"})


def opening_from_proto(message: quantizer_pb2.PublishOpen) -> Opening:
    """Decode the opening of a publication. Raises ConflictError for another contract."""
    check_contract("a learner", message.contract)
    processes = tuple(bounds.items("open.lineage", message.lineage, MAX_LINEAGE))
    return Opening(**_OPENING.of(message), learner=Lineage(bounds.epoch("open.epoch", message.epoch), processes))


def checkpoint_header_to_proto(header: CheckpointHeader) -> quantizer_pb2.CheckpointHeader:
    """Encode the header that precedes a checkpoint's tensors."""
    return quantizer_pb2.CheckpointHeader(**vars(header) | {"snapshot_at": timestamp_to_proto(header.snapshot_at)})


_CHECKPOINT = Fields(
    quantizer_pb2.CheckpointHeader, "checkpoint.", {bounds.count: "learner_step", bounds.digest: "topology"}
)


def checkpoint_header_from_proto(message: quantizer_pb2.CheckpointHeader) -> CheckpointHeader:
    """Decode the header that precedes a checkpoint's tensors. Its version is at least 1."""
    if not message.HasField("snapshot_at"):
        raise InvalidInputError("checkpoint.snapshot_at: must be the time of the snapshot, got none")
    return CheckpointHeader(
        version=bounds.within("checkpoint.version", message.version, 1, limits.MAX_VERSION),
        snapshot_at=bounds.unix_seconds("checkpoint.snapshot_at", message.snapshot_at),
        **_CHECKPOINT.of(message),
    )


def ready_to_proto(ready: Ready) -> quantizer_pb2.PublishReady:
    """Encode a quantizer's state."""
    return quantizer_pb2.PublishReady(**vars(ready), contract=CONTRACT)


def ready_from_proto(message: quantizer_pb2.PublishReady) -> Ready:
    """Decode a quantizer's state. Raises ConflictError for another contract."""
    check_contract("the quantizer", message.contract)
    return Ready(
        newest_version=bounds.version("ready.newest_version", message.newest_version),
        topologies=each(bounds.digest, "ready.topologies", message.topologies, limits.MAX_TOPOLOGIES),
        encodings=encodings_from_proto(message.encodings),
    )


def encodings_from_proto(values: Sequence[tensor_pb2.BlobEncoding]) -> tuple[tensor_pb2.BlobEncoding, ...]:
    """Decode the encodings of blobs that a peer takes. Unknown encodings are kept."""
    return tuple(bounds.items("encodings", values, limits.MAX_ENCODINGS))
