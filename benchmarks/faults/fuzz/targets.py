"""The RPCs that fuzz.py calls: their services, and the valid messages before the hostile one."""

import hashlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from numpy.typing import NDArray

from actorq import wire
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.errors import UserError
from actorq.externalscaler import externalscaler_pb2
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import actor_pb2, external_pb2, learner_pb2, quantizer_pb2
from benchmarks.faults.fuzz.corpus import ENVIRONMENT, EVALUATION, PLAY, REPORT, VALID, play_step, segment
from benchmarks.faults.fuzz.messages import altered, anything, mutated, noise
from quantizer_service.store.policy_files import encode_tensors

# Any valid message to these methods ends or changes a run, so they get only bytes that are not a message.
_ENDING = ("StopRun", "Drain", "ResetEnvironment", "ResumeTraining")
# Called rarely, because each takes long: an fsync, or the episodes of an evaluation.
_SLOW = ("SaveCheckpoint", "Evaluate")
_SLOW_WEIGHT = 0.05


@dataclass(frozen=True)
class Member:
    """An actor that has joined."""

    name: str
    incarnation: int


Opening = Callable[[random.Random, Member], list[bytes]]


@dataclass(frozen=True)
class Target:
    """A method of one service. `opening` makes the valid messages before the hostile one."""

    service: str
    path: str
    request: str
    streams_in: bool
    streams_out: bool
    weight: float = 1.0
    opening: Opening = lambda rng, member: []
    valid: tuple[bytes, ...] = ()
    ends_something: bool = False

    @property
    def rpc(self) -> str:
        """The name of the method, without its service."""
        return self.path.rpartition("/")[2]

    def messages(self, rng: random.Random, member: Member) -> list[bytes]:
        """The messages of one call. The last one is hostile or out of order."""
        if not self.streams_in:
            return [self.hostile(rng)]
        opening = self.opening(rng, member)
        if rng.random() < 0.1:
            rng.shuffle(opening)
        opening = opening[: rng.randint(0, len(opening))] if rng.random() < 0.2 else opening
        return [*opening, self.hostile(rng)]

    def hostile(self, rng: random.Random) -> bytes:
        """Random, mutated or crafted bytes. A method that changes a run gets only invalid bytes."""
        for _ in range(100):
            data = self._hostile(rng)
            if not (self.ends_something and self.parses(data)):
                return data
        return b"\xff"

    def _hostile(self, rng: random.Random) -> bytes:
        kind = GetMessageClass(_descriptor(self.request))
        chance = rng.random()
        if chance < 0.15:
            return noise(rng)
        if self.valid and chance < 0.5:
            return mutated(rng.choice(self.valid), rng.choice(self.valid), rng)
        if self.valid and chance < 0.85:
            return bytes(altered(kind.FromString(rng.choice(self.valid)), rng).SerializeToString())
        return bytes(anything(kind.DESCRIPTOR, rng).SerializeToString())

    def parses(self, data: bytes) -> bool:
        """Whether these bytes parse as the method's request."""
        try:
            GetMessageClass(_descriptor(self.request)).FromString(data)
        except DecodeError:
            return False
        return True


def all_targets(publishing: "Publishing") -> list[Target]:
    """Every method of every service."""
    learner = _methods("learner", learner_pb2.DESCRIPTOR.services_by_name["LearnerService"])
    scaler = _methods("learner", externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"])
    actor = _methods("actor", actor_pb2.DESCRIPTOR.services_by_name["ActorService"])
    simulators = _methods("simulators", external_pb2.DESCRIPTOR.services_by_name["ExternalEnvironmentService"])
    described = quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"]
    quantizers = [*_methods("quantizer", described), *_methods("relay", described)]
    targets = []
    for target in (*learner, *scaler, *actor, *simulators, *quantizers):
        if target.path.endswith("/StreamTrajectories"):
            target = replace(target, opening=_stream_opening, valid=_stream_messages(), weight=6.0)
        elif target.path.endswith("/Play"):
            target = replace(target, opening=_play_opening, valid=play_messages(), weight=4.0)
        elif target.path.endswith("/PublishCheckpoints"):
            target = replace(target, opening=publishing.opening, valid=publishing.valid(), weight=1.0)
        targets.append(target)
    health, reflection = health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR
    for service in ("learner", "quantizer", "actor", "simulators"):
        targets += _methods(service, health.services_by_name["Health"])
        targets += _methods(service, reflection.services_by_name["ServerReflection"])
    return targets


def targets_of(targets: Sequence[Target], rpcs: Collection[str]) -> list[Target]:
    """The targets with these methods; all of them if there is no name. Raises UserError for an unknown method."""
    names = {target.rpc for target in targets}
    if unknown := sorted(set(rpcs) - names):
        raise UserError(f"--rpcs: expected names among {', '.join(sorted(names))}, got {', '.join(unknown)}")
    return [target for target in targets if not rpcs or target.rpc in rpcs]


def processes_of(targets: Sequence[Target]) -> set[str]:
    """The services that calls to these targets need. Relays and standalone actors need a quantizer."""
    services = {target.service for target in targets}
    return services | ({"quantizer"} if services & {"relay", "actor"} else set())


def _methods(service: str, described: Any) -> list[Target]:
    targets = []
    for method in described.methods:
        valid = VALID.get(method.input_type.full_name)
        targets.append(
            Target(
                service=service,
                path=f"/{described.full_name}/{method.name}",
                request=method.input_type.full_name,
                streams_in=method.client_streaming,
                streams_out=method.server_streaming,
                weight=_SLOW_WEIGHT if method.name in _SLOW else 1.0,
                valid=() if valid is None else (valid.SerializeToString(),),
                ends_something=method.name in _ENDING,
            )
        )
    return targets


def _stream_opening(rng: random.Random, member: Member) -> list[bytes]:
    opening = wire.stream_opening_to_proto(wire.StreamOpening(member.name, member.incarnation, ENVIRONMENT))
    report = replace(REPORT, process=replace(REPORT.process, name=member.name))
    messages: list[Message] = [
        learner_pb2.StreamTrajectoriesRequest(open=opening),
        learner_pb2.StreamTrajectoriesRequest(report=wire.actor_report_to_proto(report)),
    ]
    return [message.SerializeToString() for message in messages]


def _stream_messages() -> tuple[bytes, ...]:
    messages = (
        learner_pb2.StreamTrajectoriesRequest(segment=wire.segment_to_proto(segment())),
        learner_pb2.StreamTrajectoriesRequest(evaluation=wire.evaluation_to_proto(EVALUATION)),
        learner_pb2.StreamTrajectoriesRequest(report=wire.actor_report_to_proto(REPORT)),
        learner_pb2.StreamTrajectoriesRequest(
            open=wire.stream_opening_to_proto(wire.StreamOpening("fuzz", 1, ENVIRONMENT))
        ),
    )
    return tuple(message.SerializeToString() for message in messages)


def play_messages() -> tuple[bytes, ...]:
    """The first two messages of a simulator."""
    messages = (
        external_pb2.PlayRequest(open=wire.play_opening_to_proto(PLAY)),
        external_pb2.PlayRequest(step=wire.play_step_to_proto(play_step())),
    )
    return tuple(message.SerializeToString() for message in messages)


def _play_opening(rng: random.Random, member: Member) -> list[bytes]:
    opening, step = play_messages()
    return [opening, *[step] * rng.randint(0, 3)]


class Publishing:
    """A learner's stream up to the hostile message. Versions ascend.

    graph, parameters: a small policy for CartPole.
    """

    def __init__(self, graph: PolicyGraph, parameters: Mapping[str, NDArray[Any]]) -> None:
        self._graph = graph
        self._parameters = parameters
        self._version = 0

    def opening(self, rng: random.Random, member: Member) -> list[bytes]:
        """`open`, and at random all or part of a graph and a checkpoint."""
        messages = [quantizer_pb2.PublishCheckpointsRequest(open=wire.opening_to_proto(wire.Opening("run", "int8")))]
        if rng.random() < 0.5:
            messages += self._graph_messages(rng)
        if rng.random() < 0.3:
            self._version += 1
            messages += self._checkpoint_messages(rng)
        return [message.SerializeToString() for message in messages]

    def valid(self) -> tuple[bytes, ...]:
        """One message of each kind."""
        evaluation = quantizer_pb2.PublishCheckpointsRequest(evaluation=wire.evaluation_to_proto(EVALUATION))
        return (*self.first_version(), evaluation.SerializeToString())

    def first_version(self) -> tuple[bytes, ...]:
        """A stream that publishes version 1."""
        rng, self._version = random.Random(1), max(1, self._version)
        opening = quantizer_pb2.PublishCheckpointsRequest(open=wire.opening_to_proto(wire.Opening("run", "int8")))
        graph = self._graph_messages(rng, honest=True)
        checkpoint = self._checkpoint_messages(rng, honest=True)
        return tuple(message.SerializeToString() for message in (opening, *graph, *checkpoint))

    def _graph_messages(
        self, rng: random.Random, honest: bool = False
    ) -> list[quantizer_pb2.PublishCheckpointsRequest]:
        model = (
            self._graph.model if honest or rng.random() < 0.7 else mutated(self._graph.model, self._graph.model, rng)
        )
        header = quantizer_pb2.GraphHeader(digest=hashlib.sha256(model).digest())
        parts = [quantizer_pb2.PublishCheckpointsRequest(part=part) for part in split_blob(model)]
        return [quantizer_pb2.PublishCheckpointsRequest(graph=header), *parts]

    def _checkpoint_messages(
        self, rng: random.Random, honest: bool = False
    ) -> list[quantizer_pb2.PublishCheckpointsRequest]:
        observations = np.zeros((16, 4), np.float32)
        checkpoint = Checkpoint(
            self._version, 1, self._graph.digest, dict(self._parameters), {OBSERVATIONS: observations}, 1.7e9
        )
        blob = encode_tensors(checkpoint)
        if not honest and rng.random() < 0.5:
            blob = mutated(blob, blob, rng)
        header = wire.checkpoint_header_to_proto(
            wire.CheckpointHeader(self._version, 1, self._graph.digest, 1_700_000_000.0)
        )
        parts = [quantizer_pb2.PublishCheckpointsRequest(part=part) for part in split_blob(blob, self._version)]
        return [quantizer_pb2.PublishCheckpointsRequest(checkpoint=header), *parts]


_TYPES = {
    descriptor.full_name: descriptor
    for file in (learner_pb2, quantizer_pb2, actor_pb2, external_pb2, externalscaler_pb2, health_pb2, reflection_pb2)
    for descriptor in file.DESCRIPTOR.message_types_by_name.values()
}


def _descriptor(name: str) -> Any:
    return _TYPES[name]
