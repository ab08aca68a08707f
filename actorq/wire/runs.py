"""Messages about the state of a run and its actors: reports and status."""

from pathlib import Path
from typing import cast

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
from actorq.errors import InvalidInputError
from actorq.v1 import actor_pb2, learner_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields, each, optional
from actorq.wire.joining import role_from_proto, role_to_proto
from actorq.wire.policies import descriptor_from_proto, descriptor_to_proto
from actorq.wire.processes import process_from_proto, process_to_proto
from actorq.wire.trajectories import (
    environment_from_proto,
    environment_to_proto,
    evaluation_from_proto,
    evaluation_to_proto,
)

_RUN_STATES = {learner_pb2.RunState.Value(f"RUN_STATE_{state.name}"): state for state in RunState}


def actor_report_to_proto(report: ActorReport) -> learner_pb2.ActorReport:
    """Encode an actor's report."""
    return learner_pb2.ActorReport(**vars(report) | {"process": process_to_proto(report.process)})


_REPORT = Fields(
    learner_pb2.ActorReport,
    "report.",
    {
        bounds.version: "policy_version served_version",
        bounds.optional_name: "scheme avoided_scheme",
        bounds.count: "environment_steps",
        bounds.rate: "steps_per_second scheme_error",
        bounds.seconds: "waited_seconds",
    },
)


def actor_report_from_proto(message: learner_pb2.ActorReport) -> ActorReport:
    """Decode an actor's report."""
    activations = message.activation_seconds
    return ActorReport(
        **_REPORT.of(message),
        queued_segments=message.queued_segments,
        activation_seconds=each(bounds.seconds, "report.activation_seconds", activations, limits.MAX_ACTIVATIONS),
        process=process_from_proto(message.process),
    )


def actor_self_status_to_proto(status: ActorSelfStatus) -> actor_pb2.GetActorStatusResponse:
    """Encode an actor's status of itself."""
    return actor_pb2.GetActorStatusResponse(
        actor_name=status.name,
        activity=status.activity,
        report=actor_report_to_proto(status.report),
        environment=environment_to_proto(status.environment) if status.environment else None,
    )


def actor_self_status_from_proto(message: actor_pb2.GetActorStatusResponse) -> ActorSelfStatus:
    """Decode an actor's status of itself."""
    return ActorSelfStatus(
        name=bounds.name("actor_name", message.actor_name),
        activity=bounds.text("activity", message.activity),
        report=actor_report_from_proto(message.report),
        environment=optional(message, "environment", environment_from_proto),
    )


def run_state_to_proto(state: RunState) -> learner_pb2.RunState:
    """Encode the state of a run."""
    return cast(learner_pb2.RunState, learner_pb2.RunState.Value(f"RUN_STATE_{state.name}"))


def run_state_from_proto(value: learner_pb2.RunState) -> RunState:
    """Decode the state of a run."""
    if value not in _RUN_STATES:
        raise InvalidInputError(f"state: must be a state of a run, got run state {value}")
    return _RUN_STATES[value]


def run_status_to_proto(status: RunStatus) -> learner_pb2.RunStatus:
    """Encode the status of a run."""
    fields = vars(status).copy()
    staleness = learner_pb2.Staleness(p50=fields.pop("staleness_p50"), p99=fields.pop("staleness_p99"))
    capacity, storage, queue = status.dynamic_capacity, status.storage, status.rollout_queue
    encoded = {
        "state": run_state_to_proto(status.state),
        "evaluation": evaluation_to_proto(status.evaluation) if status.evaluation else None,
        "staleness": staleness,
        "emitted": descriptor_to_proto(status.emitted) if status.emitted else None,
        "actors": [
            learner_pb2.ActorStatus(
                actor_name=actor.name,
                role=role_to_proto(actor.role),
                actor_index=actor.index,
                connected=actor.connected,
                report=actor_report_to_proto(actor.report) if actor.report else None,
            )
            for actor in status.actors
        ],
        "processes": [process_to_proto(stats) for stats in status.processes],
        "energy": learner_pb2.Energy(**vars(status.energy)),
        "dynamic_capacity": learner_pb2.DynamicCapacity(**vars(capacity)) if capacity else None,
        "storage": learner_pb2.ReplayStorage(**vars(storage)) if storage else None,
        "rollout_queue": learner_pb2.RolloutQueue(**vars(queue)) if queue else None,
    }
    return learner_pb2.RunStatus(**fields | encoded)


_STATUS = Fields(
    learner_pb2.RunStatus,
    "status.",
    {
        bounds.optional_name: "run_id environment_id",
        bounds.text: "algorithm",
        bounds.seconds: "elapsed_s starved_s activation_s",
        bounds.count: "environment_steps updates episodes max_environment_steps quantization_aware_since"
        " multi_step_since replay_bytes batch_bytes",
        bounds.rate: "environment_steps_per_s updates_per_s samples_per_insert",
        bounds.figure: "training_return target_return",
        bounds.share: "target_success",
        bounds.version: "policy_version",
    },
)
# Their errors have the plain names.
_STATUS_BY_NAME = Fields(
    learner_pb2.RunStatus,
    "",
    {
        bounds.text: "problem flagged_evaluation precision exported_policy outdated publishing_problem",
        bounds.count: "refused_environments",
    },
)


def run_status_from_proto(message: learner_pb2.RunStatus) -> RunStatus:
    """Decode the status of a run."""
    actors = bounds.items("status.actors", message.actors, limits.MAX_ACTORS)
    processes = bounds.items("status.processes", message.processes, limits.MAX_PROCESSES)
    return RunStatus(
        **_STATUS.of(message),
        **_STATUS_BY_NAME.of(message),
        state=run_state_from_proto(message.state),
        evaluation=optional(message, "evaluation", evaluation_from_proto),
        staleness_p50=bounds.rate("status.staleness.p50", message.staleness.p50),
        staleness_p99=bounds.rate("status.staleness.p99", message.staleness.p99),
        emitted=optional(message, "emitted", descriptor_from_proto),
        quantizer_connected=message.quantizer_connected,
        actors=tuple(map(_actor_status_from_proto, actors)),
        processes=tuple(map(process_from_proto, processes)),
        energy=_energy_from_proto(message.energy),
        # Not checked: a loss of NaN or infinity shows that training diverged.
        loss=message.loss,
        figures={
            bounds.name("status.figures", name): value
            for name, value in bounds.items("status.figures", message.figures, limits.MAX_FIGURES).items()
        },
        dynamic_capacity=optional(
            message, "dynamic_capacity", lambda part: DynamicCapacityStatus(**_DYNAMIC_CAPACITY.of(part))
        ),
        storage=optional(message, "storage", _storage_from_proto),
        rollout_queue=optional(message, "rollout_queue", lambda part: RolloutQueueStatus(**_ROLLOUT_QUEUE.of(part))),
    )


def environment_reset_to_proto(reset: EnvironmentReset) -> learner_pb2.ResetEnvironmentResponse:
    """Encode the result of an environment reset."""
    return learner_pb2.ResetEnvironmentResponse(
        set_aside=str(reset.set_aside or ""), environment=environment_to_proto(reset.spec) if reset.spec else None
    )


def environment_reset_from_proto(message: learner_pb2.ResetEnvironmentResponse) -> EnvironmentReset:
    """Decode the result of an environment reset."""
    folder = bounds.text("set_aside", message.set_aside)
    return EnvironmentReset(
        set_aside=Path(folder) if folder else None, spec=optional(message, "environment", environment_from_proto)
    )


def _actor_status_from_proto(message: learner_pb2.ActorStatus) -> ActorStatus:
    return ActorStatus(
        name=bounds.name("actor_name", message.actor_name),
        role=role_from_proto(message.role),
        index=message.actor_index,
        connected=message.connected,
        report=optional(message, "report", actor_report_from_proto),
    )


_ENERGY = Fields(learner_pb2.Energy, "energy.", {bounds.kwh: "kwh co2_kg", bounds.text: "method"})


def _energy_from_proto(message: learner_pb2.Energy) -> Energy:
    services = bounds.items("energy.kwh_per_service", message.kwh_per_service, limits.MAX_SERVICES)
    return Energy(
        **_ENERGY.of(message),
        kwh_per_service={
            bounds.name("energy.kwh_per_service", service): bounds.kwh("energy.kwh_per_service", kwh)
            for service, kwh in services.items()
        },
    )


_DYNAMIC_CAPACITY = Fields(
    learner_pb2.DynamicCapacity,
    "dynamic_capacity.",
    {bounds.count: "transitions drops dropped_transitions", bounds.amount: "distance"},
)


_ROLLOUT_QUEUE = Fields(
    learner_pb2.RolloutQueue,
    "rollout_queue.",
    {bounds.count: "waiting_transitions dropped_transitions", bounds.amount: "mismatch divergence policy_lag"},
)


_STORAGE = Fields(
    learner_pb2.ReplayStorage,
    "storage.",
    {bounds.count: "disk_free_bytes damaged_segments dropped_segments lost_segments unflushed_transitions"},
)


def _storage_from_proto(message: learner_pb2.ReplayStorage) -> StorageStatus:
    return StorageStatus(disk_low=message.disk_low, **_STORAGE.of(message))
