"""Messages about the state of a run and its actors: reports and status."""

from functools import partial
from pathlib import Path

from actorq.domain import limits
from actorq.domain.status import (
    ActorReport,
    ActorSelfStatus,
    ActorStatus,
    DynamicCapacityStatus,
    Energy,
    EnvironmentReset,
    RolloutQueueStatus,
    RunState,
    RunStatus,
    StorageStatus,
)
from actorq.v1 import actor_pb2, learner_pb2
from actorq.wire import bounds
from actorq.wire.fields import Kind, Pair, enumeration, many, named, optional
from actorq.wire.joining import ROLE
from actorq.wire.policies import DESCRIPTOR
from actorq.wire.processes import PROCESS
from actorq.wire.trajectories import ENVIRONMENT, EVALUATION

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
        # A loss or figure of NaN or infinity shows that training diverged.
        bounds.anything: "loss quantizer_connected",
        named(bounds.anything, limits.MAX_FIGURES): "figures",
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


def _folder(what: str, text: str) -> Path | None:
    return Path(bounds.text(what, text)) if text else None


environment_reset_to_proto, environment_reset_from_proto = Pair(
    learner_pb2.ResetEnvironmentResponse,
    EnvironmentReset,
    {Kind(str, _folder): "set_aside", optional(ENVIRONMENT): "spec=environment"},
).both
