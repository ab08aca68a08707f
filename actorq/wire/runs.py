"""Messages about the state of a run and its actors: reports and status."""

from pathlib import Path
from typing import cast

from actorq.domain.status import (
    ActorReport,
    ActorSelfStatus,
    ActorStatus,
    DynamicCapacityStatus,
    Energy,
    EnvironmentReset,
    ProcessUsage,
    RolloutQueueStatus,
    RunState,
    RunStatus,
    StorageStatus,
)
from actorq.errors import InvalidInputError
from actorq.v1 import actor_pb2, learner_pb2
from actorq.wire import bounds
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


def actor_report_from_proto(message: learner_pb2.ActorReport) -> ActorReport:
    """Decode an actor's report."""
    activations = bounds.items("report.activation_seconds", message.activation_seconds, bounds.MAX_ACTIVATIONS)
    return ActorReport(
        policy_version=bounds.version("report.policy_version", message.policy_version),
        scheme=bounds.optional_name("report.scheme", message.scheme),
        environment_steps=bounds.count("report.environment_steps", message.environment_steps),
        steps_per_second=bounds.amount("report.steps_per_second", message.steps_per_second, bounds.MAX_RATE),
        queued_segments=message.queued_segments,
        activation_seconds=tuple(bounds.seconds("report.activation_seconds", seconds) for seconds in activations),
        process=process_from_proto(message.process),
        waited_seconds=bounds.seconds("report.waited_seconds", message.waited_seconds),
        avoided_scheme=bounds.optional_name("report.avoided_scheme", message.avoided_scheme),
        scheme_error=bounds.amount("report.scheme_error", message.scheme_error, bounds.MAX_RATE),
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
        environment=environment_from_proto(message.environment) if message.HasField("environment") else None,
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
        "processes": [
            learner_pb2.ProcessUsage(process=process_to_proto(usage.process), kwh=usage.kwh)
            for usage in status.processes
        ],
        "energy": learner_pb2.Energy(**vars(status.energy)),
        "dynamic_capacity": learner_pb2.DynamicCapacity(**vars(capacity)) if capacity else None,
        "storage": learner_pb2.ReplayStorage(**vars(storage)) if storage else None,
        "rollout_queue": learner_pb2.RolloutQueue(**vars(queue)) if queue else None,
    }
    return learner_pb2.RunStatus(**fields | encoded)


def run_status_from_proto(message: learner_pb2.RunStatus) -> RunStatus:
    """Decode the status of a run."""
    actors = bounds.items("status.actors", message.actors, bounds.MAX_ACTORS)
    processes = bounds.items("status.processes", message.processes, bounds.MAX_PROCESSES)
    return RunStatus(
        run_id=bounds.optional_name("status.run_id", message.run_id),
        state=run_state_from_proto(message.state),
        environment_id=bounds.optional_name("status.environment_id", message.environment_id),
        algorithm=bounds.text("status.algorithm", message.algorithm),
        elapsed_s=bounds.seconds("status.elapsed_s", message.elapsed_s),
        environment_steps=bounds.count("status.environment_steps", message.environment_steps),
        environment_steps_per_s=_rate("environment_steps_per_s", message.environment_steps_per_s),
        updates=bounds.count("status.updates", message.updates),
        updates_per_s=_rate("updates_per_s", message.updates_per_s),
        samples_per_insert=_rate("samples_per_insert", message.samples_per_insert),
        episodes=bounds.count("status.episodes", message.episodes),
        training_return=_return("training_return", message) if message.HasField("training_return") else None,
        evaluation=evaluation_from_proto(message.evaluation) if message.HasField("evaluation") else None,
        target_return=_return("target_return", message) if message.HasField("target_return") else None,
        max_environment_steps=bounds.count("status.max_environment_steps", message.max_environment_steps),
        policy_version=bounds.version("status.policy_version", message.policy_version),
        staleness_p50=_rate("staleness.p50", message.staleness.p50),
        staleness_p99=_rate("staleness.p99", message.staleness.p99),
        emitted=descriptor_from_proto(message.emitted) if message.HasField("emitted") else None,
        quantizer_connected=message.quantizer_connected,
        actors=tuple(map(_actor_status_from_proto, actors)),
        processes=tuple(map(_usage_from_proto, processes)),
        energy=_energy_from_proto(message.energy),
        starved_s=bounds.seconds("status.starved_s", message.starved_s),
        # Not checked: a loss of NaN or infinity shows that training diverged.
        loss=message.loss,
        activation_s=(
            bounds.seconds("status.activation_s", message.activation_s) if message.HasField("activation_s") else None
        ),
        quantization_aware_since=_since("quantization_aware_since", message),
        replay_bytes=bounds.count("status.replay_bytes", message.replay_bytes),
        batch_bytes=bounds.count("status.batch_bytes", message.batch_bytes),
        multi_step_since=_since("multi_step_since", message),
        dynamic_capacity=(
            _dynamic_capacity_from_proto(message.dynamic_capacity) if message.HasField("dynamic_capacity") else None
        ),
        problem=bounds.text("problem", message.problem),
        refused_environments=bounds.count("refused_environments", message.refused_environments),
        storage=_storage_from_proto(message.storage) if message.HasField("storage") else None,
        flagged_evaluation=bounds.text("flagged_evaluation", message.flagged_evaluation),
        precision=bounds.text("precision", message.precision),
        rollout_queue=_rollout_queue_from_proto(message.rollout_queue) if message.HasField("rollout_queue") else None,
        exported_policy=bounds.text("exported_policy", message.exported_policy),
    )


def environment_reset_to_proto(reset: EnvironmentReset) -> learner_pb2.ResetEnvironmentResponse:
    """Encode the result of an environment reset."""
    return learner_pb2.ResetEnvironmentResponse(
        set_aside=str(reset.set_aside or ""),
        environment=environment_to_proto(reset.spec) if reset.spec else None,
    )


def environment_reset_from_proto(message: learner_pb2.ResetEnvironmentResponse) -> EnvironmentReset:
    """Decode the result of an environment reset."""
    folder = bounds.text("set_aside", message.set_aside)
    return EnvironmentReset(
        set_aside=Path(folder) if folder else None,
        spec=environment_from_proto(message.environment) if message.HasField("environment") else None,
    )


def _actor_status_from_proto(message: learner_pb2.ActorStatus) -> ActorStatus:
    return ActorStatus(
        name=bounds.name("actor_name", message.actor_name),
        role=role_from_proto(message.role),
        index=message.actor_index,
        connected=message.connected,
        report=actor_report_from_proto(message.report) if message.HasField("report") else None,
    )


def _usage_from_proto(message: learner_pb2.ProcessUsage) -> ProcessUsage:
    return ProcessUsage(process_from_proto(message.process), bounds.amount("kwh", message.kwh, bounds.MAX_KWH))


def _energy_from_proto(message: learner_pb2.Energy) -> Energy:
    services = bounds.items("energy.kwh_per_service", message.kwh_per_service, bounds.MAX_SERVICES)
    return Energy(
        kwh=bounds.amount("energy.kwh", message.kwh, bounds.MAX_KWH),
        co2_kg=bounds.amount("energy.co2_kg", message.co2_kg, bounds.MAX_KWH),
        method=bounds.text("energy.method", message.method),
        kwh_per_service={
            bounds.name("energy.kwh_per_service", service): bounds.amount("energy.kwh_per_service", kwh, bounds.MAX_KWH)
            for service, kwh in services.items()
        },
    )


def _rate(what: str, value: float) -> float:
    return bounds.amount(f"status.{what}", value, bounds.MAX_RATE)


def _return(what: str, message: learner_pb2.RunStatus) -> float:
    return bounds.figure(f"status.{what}", getattr(message, what))


def _since(what: str, message: learner_pb2.RunStatus) -> int | None:
    return bounds.count(f"status.{what}", getattr(message, what)) if message.HasField(what) else None


def _dynamic_capacity_from_proto(message: learner_pb2.DynamicCapacity) -> DynamicCapacityStatus:
    return DynamicCapacityStatus(
        transitions=bounds.count("dynamic_capacity.transitions", message.transitions),
        distance=(
            bounds.amount("dynamic_capacity.distance", message.distance, bounds.MAX_MAGNITUDE)
            if message.HasField("distance")
            else None
        ),
        drops=bounds.count("dynamic_capacity.drops", message.drops),
        dropped_transitions=bounds.count("dynamic_capacity.dropped_transitions", message.dropped_transitions),
    )


def _rollout_queue_from_proto(message: learner_pb2.RolloutQueue) -> RolloutQueueStatus:
    def mean(name: str) -> float | None:
        value = getattr(message, name)
        return bounds.amount(f"rollout_queue.{name}", value, bounds.MAX_MAGNITUDE) if message.HasField(name) else None

    return RolloutQueueStatus(
        waiting_transitions=bounds.count("rollout_queue.waiting_transitions", message.waiting_transitions),
        dropped_transitions=bounds.count("rollout_queue.dropped_transitions", message.dropped_transitions),
        mismatch=mean("mismatch"),
        divergence=mean("divergence"),
        policy_lag=mean("policy_lag"),
    )


def _storage_from_proto(message: learner_pb2.ReplayStorage) -> StorageStatus:
    return StorageStatus(
        disk_free_bytes=bounds.count("storage.disk_free_bytes", message.disk_free_bytes),
        disk_low=message.disk_low,
        damaged_segments=bounds.count("storage.damaged_segments", message.damaged_segments),
        dropped_segments=bounds.count("storage.dropped_segments", message.dropped_segments),
        lost_segments=bounds.count("storage.lost_segments", message.lost_segments),
        unflushed_transitions=bounds.count("storage.unflushed_transitions", message.unflushed_transitions),
    )
