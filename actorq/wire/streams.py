"""Messages of the two long streams: from an actor to its learner, and from a learner to its quantizer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from actorq.domain.policy import PolicyGraph
from actorq.domain.status import ActorReport
from actorq.domain.trajectory import Evaluation, Segment
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import learner_pb2, quantizer_pb2, tensor_pb2
from actorq.wire import bounds
from actorq.wire.joining import StreamOpening, stream_opening_to_proto
from actorq.wire.publications import (
    CheckpointHeader,
    Opening,
    checkpoint_header_to_proto,
    opening_to_proto,
)
from actorq.wire.runs import actor_report_to_proto
from actorq.wire.trajectories import evaluation_to_proto, segment_to_proto


@dataclass(frozen=True)
class Reported:
    """An actor's report, and the highest sequence that it sent before the report."""

    report: ActorReport
    sent_sequence: int


@dataclass(frozen=True)
class StreamAnswer:
    """A learner's answer on an actor's stream.

    acknowledged, durable: the highest stored sequence, and the highest that survives a power cut.
    credit_through: the highest sequence that the actor may send.
    evaluate_version: the version to evaluate next; 0 for none.
    stop: whether the run is over.
    max_steps_per_policy: the steps of each environment after which the actor waits for a newer policy; 0 for as many as
        Join has told.
    """

    acknowledged: int
    credit_through: int
    durable: int
    evaluate_version: int = 0
    stop: bool = False
    max_steps_per_policy: int = 0


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


def stream_answer_to_proto(answer: StreamAnswer) -> learner_pb2.StreamTrajectoriesResponse:
    """Encode an answer to an actor."""
    directive = learner_pb2.DIRECTIVE_UNSPECIFIED
    if answer.evaluate_version:
        directive = learner_pb2.DIRECTIVE_EVALUATE
    if answer.stop:
        directive = learner_pb2.DIRECTIVE_STOP
    return learner_pb2.StreamTrajectoriesResponse(
        acknowledged_sequence=answer.acknowledged,
        credit_through_sequence=answer.credit_through,
        directive=directive,
        evaluate_version=answer.evaluate_version,
        durable_sequence=answer.durable,
        max_steps_per_policy=answer.max_steps_per_policy,
    )


def stream_answer_from_proto(message: learner_pb2.StreamTrajectoriesResponse) -> StreamAnswer:
    """Decode an answer to an actor."""
    evaluate = message.directive == learner_pb2.DIRECTIVE_EVALUATE
    return StreamAnswer(
        acknowledged=bounds.count("acknowledged_sequence", message.acknowledged_sequence),
        credit_through=bounds.count("credit_through_sequence", message.credit_through_sequence),
        durable=bounds.count("durable_sequence", message.durable_sequence),
        evaluate_version=bounds.version("evaluate_version", message.evaluate_version) if evaluate else 0,
        stop=message.directive == learner_pb2.DIRECTIVE_STOP,
        max_steps_per_policy=bounds.count("max_steps_per_policy", message.max_steps_per_policy),
    )


def publication_to_proto(publication: Opening | Evaluation) -> quantizer_pb2.PublishCheckpointsRequest:
    """Encode a message without a blob of a learner's stream."""
    if isinstance(publication, Opening):
        return quantizer_pb2.PublishCheckpointsRequest(open=opening_to_proto(publication))
    return quantizer_pb2.PublishCheckpointsRequest(evaluation=evaluation_to_proto(publication))


def graph_to_protos(graph: PolicyGraph) -> Iterator[quantizer_pb2.PublishCheckpointsRequest]:
    """Encode a graph: its header, then the parts of its model."""
    yield quantizer_pb2.PublishCheckpointsRequest(graph=quantizer_pb2.GraphHeader(topology=graph.topology))
    for part in split_blob(graph.model):
        yield quantizer_pb2.PublishCheckpointsRequest(part=part)


def checkpoint_to_protos(
    header: CheckpointHeader, tensors: bytes, encodings: Iterable[tensor_pb2.BlobEncoding]
) -> Iterator[quantizer_pb2.PublishCheckpointsRequest]:
    """Encode a checkpoint: its header, then the parts of its tensors.

    tensors: in safetensors format. encodings: encodings of blobs that the quantizer takes.
    """
    yield quantizer_pb2.PublishCheckpointsRequest(checkpoint=checkpoint_header_to_proto(header))
    for part in split_blob(tensors, header.version, encodings=encodings):
        yield quantizer_pb2.PublishCheckpointsRequest(part=part)
