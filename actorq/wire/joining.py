"""Messages of an actor that joins a run and opens its stream."""

import math
from dataclasses import dataclass

from actorq.domain.status import Exploration, Membership, RunSpec, Sampling
from actorq.domain.trajectory import EnvironmentSpec, Role
from actorq.errors import InvalidInputError
from actorq.transport.options import MAX_SEGMENT_BYTES
from actorq.v1 import learner_pb2
from actorq.wire import bounds
from actorq.wire.trajectories import (
    environment_arguments_from_text,
    environment_from_proto,
    environment_to_proto,
)

_ROLES: dict[Role, learner_pb2.ActorRole] = {
    "actor": learner_pb2.ACTOR_ROLE_ACTOR,
    "evaluator": learner_pb2.ACTOR_ROLE_EVALUATOR,
}
_ROLE_NAMES = {value: role for role, value in _ROLES.items()}
_SAMPLINGS: dict[Sampling, learner_pb2.Sampling] = {
    "": learner_pb2.SAMPLING_UNSPECIFIED,
    "clipped": learner_pb2.SAMPLING_CLIPPED,
    "squashed": learner_pb2.SAMPLING_SQUASHED,
}
_SAMPLING_NAMES = {value: sampling for sampling, value in _SAMPLINGS.items()}


def role_to_proto(role: Role) -> learner_pb2.ActorRole:
    """Encode the role of an actor that joins a run."""
    if role not in _ROLES:
        raise InvalidInputError(f"role: must be one of {', '.join(_ROLES)} to join a run, got {role!r}")
    return _ROLES[role]


def role_from_proto(value: learner_pb2.ActorRole) -> Role:
    """Decode the role of an actor that joins a run."""
    if value not in _ROLE_NAMES:
        raise InvalidInputError("role: must be ACTOR_ROLE_ACTOR or ACTOR_ROLE_EVALUATOR, got none of them")
    return _ROLE_NAMES[value]


@dataclass(frozen=True)
class Joining:
    """An actor that joins a run: see `JoinRequest` in protos/actorq/v1/learner.proto."""

    name: str
    incarnation: int
    role: Role
    software_version: str
    nonce: int = 0


def joining_to_proto(joining: Joining) -> learner_pb2.JoinRequest:
    """Encode an actor's request to join a run."""
    return learner_pb2.JoinRequest(
        actor_name=joining.name,
        incarnation=joining.incarnation,
        role=role_to_proto(joining.role),
        software_version=joining.software_version,
        nonce=joining.nonce,
    )


def joining_from_proto(message: learner_pb2.JoinRequest) -> Joining:
    """Decode an actor's request to join a run."""
    return Joining(
        name=bounds.name("actor_name", message.actor_name),
        incarnation=bounds.count("incarnation", message.incarnation),
        role=role_from_proto(message.role),
        software_version=bounds.optional_name("software_version", message.software_version),
        nonce=message.nonce,
    )


@dataclass(frozen=True)
class StreamOpening:
    """The opening of an actor's stream, with the spec of its environment.

    lost_through: the highest acknowledged sequence that the learner lost and the actor no longer has; 0 for none.
    """

    name: str
    incarnation: int
    environment: EnvironmentSpec
    lost_through: int = 0


def stream_opening_to_proto(opening: StreamOpening) -> learner_pb2.StreamOpen:
    """Encode the opening of an actor's stream."""
    return learner_pb2.StreamOpen(
        actor_name=opening.name,
        incarnation=opening.incarnation,
        environment=environment_to_proto(opening.environment),
        lost_through_sequence=opening.lost_through,
    )


def stream_opening_from_proto(message: learner_pb2.StreamOpen) -> StreamOpening:
    """Decode the opening of an actor's stream."""
    return StreamOpening(
        name=bounds.name("actor_name", message.actor_name),
        incarnation=bounds.count("incarnation", message.incarnation),
        environment=environment_from_proto(message.environment),
        lost_through=bounds.count("lost_through_sequence", message.lost_through_sequence, bounds.MAX_VERSION),
    )


def membership_to_proto(membership: Membership) -> learner_pb2.JoinResponse:
    """Encode the answer to an actor that joins."""
    run = membership.run
    message = learner_pb2.JoinResponse(
        run=learner_pb2.RunSpec(
            run_id=run.run_id,
            environment_id=run.environment_id,
            environments_per_actor=run.environments_per_actor,
            segment_length=run.segment_length,
            max_segment_bytes=run.max_segment_bytes,
            queue_segments=run.queue_segments,
            scheme=run.scheme,
            evaluation_episodes=run.evaluation_episodes,
            evaluation_period_updates=run.evaluation_period_updates,
            max_steps_per_policy=run.max_steps_per_policy,
            evaluation_share=run.evaluation_share,
            target_return=run.target_return,
            environment_arguments=run.environment_arguments.to_text(),
            evaluation_sampling=_SAMPLINGS[run.evaluation_sampling],
        ),
        actor_index=membership.actor_index,
        exploration=_exploration_to_proto(membership.exploration) if membership.exploration else None,
        resume_after_sequence=membership.resume_after_sequence,
        seed=membership.seed,
        incarnation=membership.incarnation,
    )
    message.run.report_period.FromNanoseconds(round(run.report_period_s * 1e9))
    message.run.policy_patience.FromNanoseconds(round(run.policy_patience_s * 1e9))
    return message


def membership_from_proto(message: learner_pb2.JoinResponse) -> Membership:
    """Decode the answer to an actor that joins."""
    run = message.run
    return Membership(
        run=RunSpec(
            run_id=bounds.name("run.run_id", run.run_id),
            environment_id=bounds.name("run.environment_id", run.environment_id),
            environments_per_actor=bounds.within(
                "run.environments_per_actor", run.environments_per_actor, 1, bounds.MAX_ENVIRONMENTS
            ),
            segment_length=bounds.within("run.segment_length", run.segment_length, 1, bounds.MAX_SEGMENT_STEPS),
            max_segment_bytes=bounds.count("run.max_segment_bytes", run.max_segment_bytes, MAX_SEGMENT_BYTES),
            queue_segments=bounds.within("run.queue_segments", run.queue_segments, 1, bounds.MAX_QUEUED_SEGMENTS),
            scheme=bounds.name("run.scheme", run.scheme),
            evaluation_episodes=bounds.within(
                "run.evaluation_episodes", run.evaluation_episodes, 1, bounds.MAX_EVALUATION_EPISODES
            ),
            evaluation_period_updates=bounds.count("run.evaluation_period_updates", run.evaluation_period_updates),
            report_period_s=bounds.duration_s("run.report_period", run.report_period, 0.0, bounds.MAX_REPORT_PERIOD_S),
            max_steps_per_policy=run.max_steps_per_policy,
            evaluation_share=bounds.within("run.evaluation_share", run.evaluation_share, 0.0, 1.0) or 1.0,
            target_return=(
                bounds.figure("run.target_return", run.target_return) if run.HasField("target_return") else None
            ),
            environment_arguments=environment_arguments_from_text(run.environment_arguments),
            evaluation_sampling=_sampling_from_proto(run.evaluation_sampling),
            policy_patience_s=(
                bounds.duration_s("run.policy_patience", run.policy_patience, 0.0, bounds.MAX_PATIENCE_S)
                if run.HasField("policy_patience")
                else RunSpec.policy_patience_s
            ),
        ),
        actor_index=message.actor_index,
        exploration=_exploration_from_proto(message.exploration) if message.HasField("exploration") else None,
        resume_after_sequence=bounds.count("resume_after_sequence", message.resume_after_sequence),
        seed=message.seed,
        incarnation=bounds.count("incarnation", message.incarnation),
    )


def _exploration_to_proto(exploration: Exploration) -> learner_pb2.Exploration:
    return learner_pb2.Exploration(**vars(exploration) | {"sampling": _SAMPLINGS[exploration.sampling]})


def _exploration_from_proto(message: learner_pb2.Exploration) -> Exploration:
    epsilons = bounds.items("exploration.epsilons", message.epsilons, bounds.MAX_ENVIRONMENTS)
    noise = bounds.items("exploration.noise", message.noise, bounds.MAX_ENVIRONMENTS)
    return Exploration(
        epsilons=tuple(bounds.within("exploration.epsilons", epsilon, 0.0, 1.0) for epsilon in epsilons),
        noise=tuple(bounds.amount("exploration.noise", deviation, bounds.MAX_MAGNITUDE) for deviation in noise),
        random_steps=bounds.count("exploration.random_steps", message.random_steps),
        report_greedy=message.report_greedy,
        sampling=_sampling_from_proto(message.sampling),
        correlation=bounds.within("exploration.correlation", message.correlation, 0.0, math.nextafter(1.0, 0.0)),
    )


def _sampling_from_proto(value: learner_pb2.Sampling) -> Sampling:
    if value not in _SAMPLING_NAMES:
        raise InvalidInputError(f"sampling: expected {', '.join(learner_pb2.Sampling.keys())}, got {value}")
    return _SAMPLING_NAMES[value]
