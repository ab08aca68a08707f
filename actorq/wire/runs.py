"""Runs and their actors: joining, reports and status."""

import math
from typing import cast

from actorq.errors import InvalidInputError
from actorq.status import (
    ActorReport,
    ActorSelfStatus,
    ActorStatus,
    DynamicCapacityStatus,
    Energy,
    Exploration,
    Membership,
    ProcessUsage,
    RunSpec,
    RunState,
    RunStatus,
)
from actorq.trajectory import Role
from actorq.v1 import actor_pb2, learner_pb2
from actorq.wire.policies import descriptor_from_proto, descriptor_to_proto
from actorq.wire.processes import process_from_proto, process_to_proto
from actorq.wire.trajectories import (
    environment_from_proto,
    environment_to_proto,
    evaluation_from_proto,
    evaluation_to_proto,
)

_ROLES: dict[Role, learner_pb2.ActorRole] = {
    "actor": learner_pb2.ACTOR_ROLE_ACTOR,
    "evaluator": learner_pb2.ACTOR_ROLE_EVALUATOR,
}
_ROLE_NAMES = {value: role for role, value in _ROLES.items()}
_RUN_STATES = {learner_pb2.RunState.Value(f"RUN_STATE_{state.name}"): state for state in RunState}


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
        ),
        actor_index=membership.actor_index,
        exploration=_exploration_to_proto(membership.exploration) if membership.exploration else None,
        resume_after_sequence=membership.resume_after_sequence,
        seed=membership.seed,
    )
    message.run.report_period.FromNanoseconds(round(run.report_period_s * 1e9))
    return message


def membership_from_proto(message: learner_pb2.JoinResponse) -> Membership:
    """Decode the answer to an actor that joins."""
    run = message.run
    return Membership(
        run=RunSpec(
            run_id=run.run_id,
            environment_id=run.environment_id,
            environments_per_actor=run.environments_per_actor,
            segment_length=run.segment_length,
            max_segment_bytes=run.max_segment_bytes,
            queue_segments=run.queue_segments,
            scheme=run.scheme,
            evaluation_episodes=run.evaluation_episodes,
            evaluation_period_updates=run.evaluation_period_updates,
            report_period_s=run.report_period.ToNanoseconds() / 1e9,
            max_steps_per_policy=run.max_steps_per_policy,
        ),
        actor_index=message.actor_index,
        exploration=_exploration_from_proto(message.exploration) if message.HasField("exploration") else None,
        resume_after_sequence=message.resume_after_sequence,
        seed=message.seed,
    )


def _exploration_to_proto(exploration: Exploration) -> learner_pb2.Exploration:
    return learner_pb2.Exploration(
        epsilons=exploration.epsilons,
        noise=exploration.noise,
        random_steps=exploration.random_steps,
        report_greedy=exploration.report_greedy,
    )


def _exploration_from_proto(message: learner_pb2.Exploration) -> Exploration:
    return Exploration(tuple(message.epsilons), tuple(message.noise), message.random_steps, message.report_greedy)


def actor_report_to_proto(report: ActorReport) -> learner_pb2.ActorReport:
    """Encode an actor's report."""
    return learner_pb2.ActorReport(
        policy_version=report.policy_version,
        scheme=report.scheme,
        environment_steps=report.environment_steps,
        steps_per_second=report.steps_per_second,
        queued_segments=report.queued_segments,
        activation_seconds=report.activation_seconds,
        process=process_to_proto(report.process),
        waited_seconds=report.waited_seconds,
    )


def actor_report_from_proto(message: learner_pb2.ActorReport) -> ActorReport:
    """Decode an actor's report; all figures must be finite and not negative."""
    figures = (message.steps_per_second, message.waited_seconds, *message.activation_seconds)
    if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
        raise InvalidInputError(f"report: figures must be finite and at least 0, got {figures}")
    return ActorReport(
        policy_version=message.policy_version,
        scheme=message.scheme,
        environment_steps=message.environment_steps,
        steps_per_second=message.steps_per_second,
        queued_segments=message.queued_segments,
        activation_seconds=tuple(message.activation_seconds),
        process=process_from_proto(message.process),
        waited_seconds=message.waited_seconds,
    )


def actor_self_status_to_proto(status: ActorSelfStatus) -> actor_pb2.GetActorStatusResponse:
    """Encode what an actor says of itself."""
    return actor_pb2.GetActorStatusResponse(
        actor_name=status.name,
        activity=status.activity,
        report=actor_report_to_proto(status.report),
        environment=environment_to_proto(status.environment) if status.environment else None,
    )


def actor_self_status_from_proto(message: actor_pb2.GetActorStatusResponse) -> ActorSelfStatus:
    """Decode what an actor says of itself."""
    return ActorSelfStatus(
        name=message.actor_name,
        activity=message.activity,
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
    """Encode how a run goes."""
    return learner_pb2.RunStatus(
        run_id=status.run_id,
        state=run_state_to_proto(status.state),
        environment_id=status.environment_id,
        algorithm=status.algorithm,
        elapsed_s=status.elapsed_s,
        environment_steps=status.environment_steps,
        environment_steps_per_s=status.environment_steps_per_s,
        updates=status.updates,
        updates_per_s=status.updates_per_s,
        samples_per_insert=status.samples_per_insert,
        episodes=status.episodes,
        training_return=status.training_return,
        evaluation=evaluation_to_proto(status.evaluation) if status.evaluation else None,
        target_return=status.target_return,
        max_environment_steps=status.max_environment_steps,
        policy_version=status.policy_version,
        staleness=learner_pb2.Staleness(p50=status.staleness_p50, p99=status.staleness_p99),
        emitted=descriptor_to_proto(status.emitted) if status.emitted else None,
        quantizer_connected=status.quantizer_connected,
        actors=[
            learner_pb2.ActorStatus(
                actor_name=actor.name,
                role=role_to_proto(actor.role),
                actor_index=actor.index,
                connected=actor.connected,
                report=actor_report_to_proto(actor.report) if actor.report else None,
            )
            for actor in status.actors
        ],
        processes=[
            learner_pb2.ProcessUsage(process=process_to_proto(usage.process), kwh=usage.kwh)
            for usage in status.processes
        ],
        energy=learner_pb2.Energy(
            kwh=status.energy.kwh,
            co2_kg=status.energy.co2_kg,
            method=status.energy.method,
            kwh_per_service=status.energy.kwh_per_service,
        ),
        starved_s=status.starved_s,
        loss=status.loss,
        activation_s=status.activation_s,
        quantization_aware_since=status.quantization_aware_since,
        replay_bytes=status.replay_bytes,
        batch_bytes=status.batch_bytes,
        multi_step_since=status.multi_step_since,
        dynamic_capacity=_dynamic_capacity_to_proto(status.dynamic_capacity) if status.dynamic_capacity else None,
    )


def run_status_from_proto(message: learner_pb2.RunStatus) -> RunStatus:
    """Decode how a run goes."""
    return RunStatus(
        run_id=message.run_id,
        state=run_state_from_proto(message.state),
        environment_id=message.environment_id,
        algorithm=message.algorithm,
        elapsed_s=message.elapsed_s,
        environment_steps=message.environment_steps,
        environment_steps_per_s=message.environment_steps_per_s,
        updates=message.updates,
        updates_per_s=message.updates_per_s,
        samples_per_insert=message.samples_per_insert,
        episodes=message.episodes,
        training_return=message.training_return if message.HasField("training_return") else None,
        evaluation=evaluation_from_proto(message.evaluation) if message.HasField("evaluation") else None,
        target_return=message.target_return if message.HasField("target_return") else None,
        max_environment_steps=message.max_environment_steps,
        policy_version=message.policy_version,
        staleness_p50=message.staleness.p50,
        staleness_p99=message.staleness.p99,
        emitted=descriptor_from_proto(message.emitted) if message.HasField("emitted") else None,
        quantizer_connected=message.quantizer_connected,
        actors=tuple(
            ActorStatus(
                name=actor.actor_name,
                role=role_from_proto(actor.role),
                index=actor.actor_index,
                connected=actor.connected,
                report=actor_report_from_proto(actor.report) if actor.HasField("report") else None,
            )
            for actor in message.actors
        ),
        processes=tuple(ProcessUsage(process_from_proto(usage.process), usage.kwh) for usage in message.processes),
        energy=Energy(
            message.energy.kwh, message.energy.co2_kg, message.energy.method, dict(message.energy.kwh_per_service)
        ),
        starved_s=message.starved_s,
        loss=message.loss,
        activation_s=message.activation_s if message.HasField("activation_s") else None,
        quantization_aware_since=(
            message.quantization_aware_since if message.HasField("quantization_aware_since") else None
        ),
        replay_bytes=message.replay_bytes,
        batch_bytes=message.batch_bytes,
        multi_step_since=message.multi_step_since if message.HasField("multi_step_since") else None,
        dynamic_capacity=(
            _dynamic_capacity_from_proto(message.dynamic_capacity) if message.HasField("dynamic_capacity") else None
        ),
    )


def _dynamic_capacity_to_proto(status: DynamicCapacityStatus) -> learner_pb2.DynamicCapacity:
    return learner_pb2.DynamicCapacity(
        transitions=status.transitions,
        distance=status.distance,
        drops=status.drops,
        dropped_transitions=status.dropped_transitions,
    )


def _dynamic_capacity_from_proto(message: learner_pb2.DynamicCapacity) -> DynamicCapacityStatus:
    return DynamicCapacityStatus(
        transitions=message.transitions,
        distance=message.distance if message.HasField("distance") else None,
        drops=message.drops,
        dropped_transitions=message.dropped_transitions,
    )
