"""Messages of the two long streams: from an actor to its learner, and from a learner to its quantizer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from google.protobuf.timestamp_pb2 import Timestamp

from actorq.domain import limits
from actorq.domain.lineage import MAX_LINEAGE, UNCHECKED, Lineage
from actorq.domain.policy import PolicyGraph
from actorq.domain.status import ActorReport
from actorq.domain.trajectory import Evaluation, Segment
from actorq.errors import InvalidInputError
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import learner_pb2, quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.fields import Kind, Pair, many
from actorq.wire.policies import ENCODINGS
from actorq.wire.runs import StreamOpening, actor_report_to_proto, stream_opening_to_proto
from actorq.wire.tensors import TIME
from actorq.wire.trajectories import evaluation_to_proto, segment_to_proto


@dataclass(frozen=True)
class Reported:
    """An actor's report, and the highest sequence that the actor sent before it."""

    report: ActorReport
    sent_sequence: int


@dataclass(frozen=True)
class StreamAnswer:
    """A learner's answer in an actor's stream: `StreamTrajectoriesResponse` in protos/actorq/v1/learner.proto.

    evaluate_version: the version to evaluate next; 0 for none. stop: whether the run is over.
    """

    acknowledged: int
    credit_through: int
    durable: int
    evaluate_version: int = 0
    stop: bool = False
    max_steps_per_policy: int = 0

    @property
    def directive(self) -> learner_pb2.Directive:
        """The actor's next action."""
        if self.stop:
            return learner_pb2.DIRECTIVE_STOP
        return learner_pb2.DIRECTIVE_EVALUATE if self.evaluate_version else learner_pb2.DIRECTIVE_UNSPECIFIED


def upload_to_proto(upload: StreamOpening | Segment | Evaluation | Reported) -> learner_pb2.StreamTrajectoriesRequest:
    """Encode one message of an actor's stream."""
    match upload:
        case StreamOpening():
            return learner_pb2.StreamTrajectoriesRequest(open=stream_opening_to_proto(upload))
        case Segment():
            return learner_pb2.StreamTrajectoriesRequest(segment=segment_to_proto(upload))
        case Evaluation():
            return learner_pb2.StreamTrajectoriesRequest(evaluation=evaluation_to_proto(upload))
        case Reported():
            return learner_pb2.StreamTrajectoriesRequest(
                report=actor_report_to_proto(upload.report), sent_sequence=upload.sent_sequence
            )


def _answer(directive: learner_pb2.Directive, evaluate_version: int, **counts: int) -> StreamAnswer:
    evaluate = evaluate_version if directive == learner_pb2.DIRECTIVE_EVALUATE else 0
    return StreamAnswer(**counts, evaluate_version=evaluate, stop=directive == learner_pb2.DIRECTIVE_STOP)


stream_answer_to_proto, stream_answer_from_proto = Pair(
    learner_pb2.StreamTrajectoriesResponse,
    _answer,
    {
        bounds.count: "acknowledged=acknowledged_sequence credit_through=credit_through_sequence"
        " durable=durable_sequence max_steps_per_policy",
        bounds.version: "evaluate_version",
        # An unknown directive counts as none.
        bounds.anything: "directive",
    },
).both


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
    """A quantizer's state: its graph and version, and the encodings of blobs that it decodes."""

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


def publication_to_proto(publication: Opening | Evaluation) -> quantizer_pb2.PublishCheckpointsRequest:
    """Encode a message of a learner's stream that has no blob."""
    if isinstance(publication, Opening):
        return quantizer_pb2.PublishCheckpointsRequest(open=opening_to_proto(publication))
    return quantizer_pb2.PublishCheckpointsRequest(evaluation=evaluation_to_proto(publication))


def graph_to_protos(graph: PolicyGraph) -> Iterator[quantizer_pb2.PublishCheckpointsRequest]:
    """Encode a graph: its header, then the parts of its model."""
    yield quantizer_pb2.PublishCheckpointsRequest(graph=quantizer_pb2.GraphHeader(digest=graph.digest))
    for part in split_blob(graph.model):
        yield quantizer_pb2.PublishCheckpointsRequest(part=part)


def checkpoint_to_protos(
    header: CheckpointHeader, tensors: bytes, encodings: Iterable[tensor_pb2.BlobEncoding]
) -> Iterator[quantizer_pb2.PublishCheckpointsRequest]:
    """Encode a checkpoint: its header, then the parts of its tensors (safetensors) in one of the encodings."""
    yield quantizer_pb2.PublishCheckpointsRequest(checkpoint=checkpoint_header_to_proto(header))
    for part in split_blob(tensors, header.version, encodings=encodings):
        yield quantizer_pb2.PublishCheckpointsRequest(part=part)
