"""Messages about a run: a joining actor, reports of actors, greedy episodes, the run's status."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from actorq.domain import limits
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import (
    ActorReport,
    ActorSelfStatus,
    ActorStatus,
    DynamicCapacityStatus,
    Energy,
    EnvironmentReset,
    Exploration,
    Membership,
    RolloutQueueStatus,
    RunSpec,
    RunState,
    RunStatus,
    StorageStatus,
)
from actorq.domain.trajectory import Role
from actorq.v1 import actor_pb2, learner_pb2
from actorq.wire import bounds
from actorq.wire.fields import Kind, Pair, enumeration, many, named, optional
from actorq.wire.policies import DESCRIPTOR
from actorq.wire.processes import PROCESS
from actorq.wire.tensors import duration
from actorq.wire.trajectories import AGENT_GROUP, ENVIRONMENT, ENVIRONMENT_ARGUMENTS, EVALUATION

# Largest seed of an environment. An actor adds the environment's index to it.
_MAX_SEED = 2**31 - 1
_WATCH_PERIOD_S = (0.05, 3600.0)

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
    """The opening of an actor's stream: `StreamOpen` in protos/actorq/v1/learner.proto."""

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

# Older learners do not send the patience, and send 0 as the share.
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

_STATE = enumeration(
    learner_pb2.RunState, {state: learner_pb2.RunState.Value(f"RUN_STATE_{state.name}") for state in RunState}
)
run_state_to_proto, run_state_from_proto = _STATE.encode, partial(_STATE.decode, "state")

_REPORT = Pair(
    learner_pb2.ActorReport,
    ActorReport,
    {
        bounds.version: "policy_version served_version",
        bounds.optional_name: "scheme avoided_scheme",
        bounds.count: "environment_steps",
        bounds.rate: "steps_per_second scheme_error",
        bounds.seconds: "waited_seconds",
        bounds.anything: "queued_segments",
        many(bounds.seconds, limits.MAX_ACTIVATIONS): "activation_seconds",
        PROCESS: "process",
    },
    prefix="report.",
)
actor_report_to_proto, actor_report_from_proto = _REPORT.both

actor_self_status_to_proto, actor_self_status_from_proto = Pair(
    actor_pb2.GetActorStatusResponse,
    ActorSelfStatus,
    {bounds.name: "name=actor_name", bounds.text: "activity", _REPORT: "report", optional(ENVIRONMENT): "environment"},
).both

_ACTOR = Pair(
    learner_pb2.ActorStatus,
    ActorStatus,
    {
        bounds.name: "name=actor_name",
        ROLE: "role",
        bounds.anything: "index=actor_index connected",
        optional(_REPORT): "report",
    },
)
_ENERGY = Pair(
    learner_pb2.Energy,
    Energy,
    {bounds.kwh: "kwh co2_kg", bounds.text: "method", named(bounds.kwh, limits.MAX_SERVICES): "kwh_per_service"},
    prefix="energy.",
)
_DYNAMIC_CAPACITY = Pair(
    learner_pb2.DynamicCapacity,
    DynamicCapacityStatus,
    {bounds.count: "transitions drops dropped_transitions", bounds.amount: "distance"},
    prefix="dynamic_capacity.",
)
_ROLLOUT_QUEUE = Pair(
    learner_pb2.RolloutQueue,
    RolloutQueueStatus,
    {bounds.count: "waiting_transitions dropped_transitions", bounds.amount: "mismatch divergence policy_lag"},
    prefix="rollout_queue.",
)
_STORAGE = Pair(
    learner_pb2.ReplayStorage,
    StorageStatus,
    {
        bounds.count: "disk_free_bytes damaged_segments dropped_segments lost_segments unflushed_transitions",
        bounds.anything: "disk_low",
    },
    prefix="storage.",
)
_STATUS = Pair(
    learner_pb2.RunStatus,
    RunStatus,
    {
        _STATE: "state",
        bounds.optional_name: "run_id environment_id",
        bounds.text: "algorithm problem flagged_evaluation precision exported_policy outdated publishing_problem",
        bounds.seconds: "elapsed_s starved_s activation_s",
        bounds.count: "environment_steps updates episodes max_environment_steps quantization_aware_since"
        " multi_step_since replay_bytes batch_bytes refused_environments",
        bounds.rate: "environment_steps_per_s updates_per_s samples_per_insert",
        bounds.figure: "training_return target_return",
        bounds.share: "target_success",
        bounds.version: "policy_version",
        # A loss or figure that is NaN or infinite shows that training diverged.
        bounds.anything: "loss quantizer_connected",
        named(bounds.anything, limits.MAX_FIGURES): "figures",
        named(bounds.figure, limits.MAX_AGENTS): "agent_returns",
        many(AGENT_GROUP, limits.MAX_AGENTS): "groups",
        optional(EVALUATION): "evaluation",
        optional(DESCRIPTOR): "emitted",
        many(_ACTOR, limits.MAX_ACTORS): "actors",
        many(PROCESS, limits.MAX_PROCESSES): "processes",
        _ENERGY: "energy",
        optional(_DYNAMIC_CAPACITY): "dynamic_capacity",
        optional(_STORAGE): "storage",
        optional(_ROLLOUT_QUEUE): "rollout_queue",
    },
    prefix="status.",
)


def run_status_to_proto(status: RunStatus) -> learner_pb2.RunStatus:
    """Encode the status of a run."""
    return _STATUS.to_proto(status, staleness={"p50": status.staleness_p50, "p99": status.staleness_p99})


def run_status_from_proto(message: learner_pb2.RunStatus) -> RunStatus:
    """Decode the status of a run."""
    p50, p99 = (bounds.rate(f"status.staleness.{name}", getattr(message.staleness, name)) for name in ("p50", "p99"))
    return _STATUS.from_proto(message, staleness_p50=p50, staleness_p99=p99)


_FOLDER = Kind(str, lambda what, text: Path(bounds.text(what, text)) if text else None)
environment_reset_to_proto, environment_reset_from_proto = Pair(
    learner_pb2.ResetEnvironmentResponse,
    EnvironmentReset,
    {_FOLDER: "set_aside", optional(ENVIRONMENT): "spec=environment"},
).both


@dataclass(frozen=True)
class EvaluateRequest:
    """A request for greedy episodes of a policy. An empty scheme is the run's scheme, version 0 the newest."""

    episodes: int
    scheme: str
    version: int
    seed: int


evaluate_request_from_proto = Pair(
    actor_pb2.EvaluateRequest,
    EvaluateRequest,
    {
        bounds.between(1, limits.MAX_EVALUATION_EPISODES): "episodes",
        bounds.optional_name: "scheme",
        bounds.version: "version=policy_version",
        bounds.between(0, _MAX_SEED): "seed",
    },
).from_proto


def watch_period_from_proto(message: learner_pb2.WatchStatusRequest) -> float:
    """Decode the period of a status stream in seconds; 1 by default."""
    least, most = _WATCH_PERIOD_S
    return bounds.duration_s("period", message.period, least, most) if message.HasField("period") else 1.0
