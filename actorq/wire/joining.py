"""Messages of an actor that joins a run and opens its stream."""

import math
from dataclasses import dataclass
from functools import partial

from actorq.domain import limits
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration, Membership, RunSpec
from actorq.domain.trajectory import Role
from actorq.v1 import learner_pb2
from actorq.wire import bounds
from actorq.wire.fields import Pair, enumeration, many, optional
from actorq.wire.tensors import duration
from actorq.wire.trajectories import ENVIRONMENT, ENVIRONMENT_ARGUMENTS

# The role of an actor that joins a run.
ROLE = enumeration(
    learner_pb2.ActorRole, {"actor": learner_pb2.ACTOR_ROLE_ACTOR, "evaluator": learner_pb2.ACTOR_ROLE_EVALUATOR}
)
role_to_proto, role_from_proto = ROLE.encode, partial(ROLE.decode, "role")


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


joining_to_proto, joining_from_proto = Pair(
    learner_pb2.JoinRequest,
    Joining,
    {
        bounds.name: "actor_name",
        bounds.count: "incarnation",
        ROLE: "role",
        bounds.optional_name: "software_version",
        bounds.anything: "nonce",
        bounds.epoch: "epoch",
        bounds.version: "newest_version",
    },
    peer="an actor",
).both


@dataclass(frozen=True)
class StreamOpening:
    """The opening of an actor's stream, with the spec of its environment.

    lost_through: the highest acknowledged sequence that the learner lost and the actor no longer has; 0 for none.
    """

    name: str
    incarnation: int
    environment: EnvironmentSpec
    lost_through: int = 0


stream_opening_to_proto, stream_opening_from_proto = Pair(
    learner_pb2.StreamOpen,
    StreamOpening,
    {
        bounds.name: "name=actor_name",
        bounds.count: "incarnation",
        ENVIRONMENT: "environment",
        bounds.between(0, limits.MAX_VERSION): "lost_through=lost_through_sequence",
    },
).both

# Older learners do not tell the patience, and 0 as the share.
_PATIENCE = optional(duration(0.0, limits.MAX_PATIENCE_S), RunSpec.policy_patience_s)


def _share_or_all(what: str, value: float) -> float:
    return bounds.share(what, value) or 1.0


_RUN = Pair(
    learner_pb2.RunSpec,
    RunSpec,
    {
        bounds.name: "run_id environment_id scheme",
        bounds.between(1, limits.MAX_ENVIRONMENTS): "environments_per_actor",
        bounds.between(1, limits.MAX_SEGMENT_STEPS): "segment_length",
        bounds.between(0, limits.MAX_SEGMENT_BYTES): "max_segment_bytes",
        bounds.between(1, limits.MAX_QUEUED_SEGMENTS): "queue_segments",
        bounds.between(1, limits.MAX_EVALUATION_EPISODES): "evaluation_episodes",
        bounds.count: "evaluation_period_updates",
        duration(0.0, limits.MAX_REPORT_PERIOD_S): "report_period_s=report_period",
        _PATIENCE: "policy_patience_s=policy_patience",
        bounds.anything: "max_steps_per_policy",
        bounds.figure: "target_return",
        bounds.share: "target_success",
        _share_or_all: "evaluation_share",
        ENVIRONMENT_ARGUMENTS: "environment_arguments",
        bounds.optional_name: "evaluation_sampling",
        many(bounds.name, limits.MAX_COLUMNS): "columns",
    },
    prefix="run.",
)
_EXPLORATION = Pair(
    learner_pb2.Exploration,
    Exploration,
    {
        many(bounds.share, limits.MAX_ENVIRONMENTS): "epsilons",
        many(bounds.amount, limits.MAX_ENVIRONMENTS): "noise",
        bounds.count: "random_steps",
        bounds.optional_name: "sampling",
        bounds.between(0.0, math.nextafter(1.0, 0.0)): "correlation",
    },
    prefix="exploration.",
)
membership_to_proto, membership_from_proto = Pair(
    learner_pb2.JoinResponse,
    Membership,
    {
        _RUN: "run",
        optional(_EXPLORATION): "exploration",
        bounds.anything: "actor_index seed",
        bounds.count: "resume_after_sequence incarnation",
        bounds.epoch: "epoch",
    },
    peer="the learner",
).both
