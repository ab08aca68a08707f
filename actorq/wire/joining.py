"""Messages of an actor that joins a run and opens its stream."""

import math
from dataclasses import dataclass

from actorq.domain import limits
from actorq.domain.contract import CONTRACT, check_contract
from actorq.domain.limits import MAX_SEGMENT_BYTES
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration, Membership, RunSpec, Sampling
from actorq.domain.trajectory import Role
from actorq.errors import InvalidInputError
from actorq.v1 import learner_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields, each, optional
from actorq.wire.tensors import duration_to_proto
from actorq.wire.trajectories import environment_arguments_from_text, environment_from_proto, environment_to_proto

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

    actor_name: str
    incarnation: int
    role: Role
    software_version: str
    nonce: int = 0
    epoch: int = 0
    newest_version: int = 0


def joining_to_proto(joining: Joining) -> learner_pb2.JoinRequest:
    """Encode an actor's request to join a run."""
    return learner_pb2.JoinRequest(**vars(joining) | {"role": role_to_proto(joining.role), "contract": CONTRACT})


_JOINING = Fields(
    learner_pb2.JoinRequest,
    "",
    {
        bounds.name: "actor_name",
        bounds.count: "incarnation",
        bounds.optional_name: "software_version",
        bounds.epoch: "epoch",
        bounds.version: "newest_version",
    },
)


def joining_from_proto(message: learner_pb2.JoinRequest) -> Joining:
    """Decode an actor's request to join a run. Raises ConflictError for another contract."""
    check_contract("an actor", message.contract)
    return Joining(role=role_from_proto(message.role), nonce=message.nonce, **_JOINING.of(message))


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
        lost_through=bounds.count("lost_through_sequence", message.lost_through_sequence, limits.MAX_VERSION),
    )


def membership_to_proto(membership: Membership) -> learner_pb2.JoinResponse:
    """Encode the answer to an actor that joins."""
    run = vars(membership.run).copy()
    encoded = {
        "report_period": duration_to_proto(run.pop("report_period_s")),
        "policy_patience": duration_to_proto(run.pop("policy_patience_s")),
        "environment_arguments": membership.run.environment_arguments.to_text(),
        "evaluation_sampling": _SAMPLINGS[membership.run.evaluation_sampling],
    }
    exploration = None
    if (own := membership.exploration) is not None:
        exploration = learner_pb2.Exploration(**vars(own) | {"sampling": _SAMPLINGS[own.sampling]})
    parts = {"run": learner_pb2.RunSpec(**run | encoded), "exploration": exploration, "contract": CONTRACT}
    return learner_pb2.JoinResponse(**vars(membership) | parts)


_MEMBERSHIP = Fields(
    learner_pb2.JoinResponse, "", {bounds.count: "resume_after_sequence incarnation", bounds.epoch: "epoch"}
)


def membership_from_proto(message: learner_pb2.JoinResponse) -> Membership:
    """Decode the answer to an actor that joins. Raises ConflictError for another contract."""
    check_contract("the learner", message.contract)
    return Membership(
        **_MEMBERSHIP.of(message),
        run=_run_from_proto(message.run),
        actor_index=message.actor_index,
        exploration=optional(message, "exploration", _exploration_from_proto),
        seed=message.seed,
    )


_RUN = Fields(
    learner_pb2.RunSpec,
    "run.",
    {
        bounds.name: "run_id environment_id scheme",
        bounds.count: "evaluation_period_updates",
        bounds.figure: "target_return",
        bounds.share: "target_success",
    },
)


def _run_from_proto(message: learner_pb2.RunSpec) -> RunSpec:
    def at_least_1(name: str, most: int) -> int:
        return int(bounds.within(f"run.{name}", getattr(message, name), 1, most))

    return RunSpec(
        **_RUN.of(message),
        environments_per_actor=at_least_1("environments_per_actor", limits.MAX_ENVIRONMENTS),
        segment_length=at_least_1("segment_length", limits.MAX_SEGMENT_STEPS),
        max_segment_bytes=bounds.count("run.max_segment_bytes", message.max_segment_bytes, MAX_SEGMENT_BYTES),
        queue_segments=at_least_1("queue_segments", limits.MAX_QUEUED_SEGMENTS),
        evaluation_episodes=at_least_1("evaluation_episodes", limits.MAX_EVALUATION_EPISODES),
        report_period_s=bounds.duration_s("run.report_period", message.report_period, 0.0, limits.MAX_REPORT_PERIOD_S),
        max_steps_per_policy=message.max_steps_per_policy,
        evaluation_share=bounds.share("run.evaluation_share", message.evaluation_share) or 1.0,
        environment_arguments=environment_arguments_from_text(message.environment_arguments),
        evaluation_sampling=_sampling_from_proto(message.evaluation_sampling),
        columns=each(bounds.name, "run.columns", message.columns, limits.MAX_COLUMNS),
        policy_patience_s=(
            bounds.duration_s("run.policy_patience", message.policy_patience, 0.0, limits.MAX_PATIENCE_S)
            if message.HasField("policy_patience")
            else RunSpec.policy_patience_s
        ),
    )


def _exploration_from_proto(message: learner_pb2.Exploration) -> Exploration:
    return Exploration(
        epsilons=each(bounds.share, "exploration.epsilons", message.epsilons, limits.MAX_ENVIRONMENTS),
        noise=each(bounds.amount, "exploration.noise", message.noise, limits.MAX_ENVIRONMENTS),
        random_steps=bounds.count("exploration.random_steps", message.random_steps),
        sampling=_sampling_from_proto(message.sampling),
        correlation=bounds.within("exploration.correlation", message.correlation, 0.0, math.nextafter(1.0, 0.0)),
    )


def _sampling_from_proto(value: learner_pb2.Sampling) -> Sampling:
    if value not in _SAMPLING_NAMES:
        raise InvalidInputError(f"sampling: expected {', '.join(learner_pb2.Sampling.keys())}, got {value}")
    return _SAMPLING_NAMES[value]
