"""Domain objects to messages and back: the only place that knows both.

Each pair of functions is `NAME_to_proto` and `NAME_from_proto`. Decoding checks what arrays and enums claim and
raises InvalidInputError; whether a value makes sense is for the domain object that receives it.
"""

import math
from typing import Any

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from actorq.errors import InvalidInputError
from actorq.policy import FidelityReport, PolicyDescriptor, RetainedPolicy
from actorq.status import (
    ActorReport,
    ActorSelfStatus,
    ActorStatus,
    Energy,
    Membership,
    ProcessUsage,
    Receipt,
    RunSpec,
    RunState,
    RunStatus,
)
from actorq.telemetry.energy import NodeEnergy
from actorq.telemetry.process_stats import ProcessStats
from actorq.trajectory import ArraySpec, EnvironmentSpec, Episode, Evaluation, PolicySpan, Role, Segment
from actorq.v1 import actor_pb2, learner_pb2, policy_pb2, process_pb2, quantizer_pb2, tensor_pb2, trajectory_pb2

_DTYPES: dict[tensor_pb2.DataType, np.dtype[Any]] = {
    tensor_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    tensor_pb2.DATA_TYPE_FLOAT64: np.dtype("<f8"),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype("u1"),
    tensor_pb2.DATA_TYPE_INT8: np.dtype("i1"),
    tensor_pb2.DATA_TYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DATA_TYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DATA_TYPE_BOOL: np.dtype("?"),
}
_DATA_TYPES = {dtype: data_type for data_type, dtype in _DTYPES.items()}

_ROLES: dict[Role, learner_pb2.ActorRole] = {
    "actor": learner_pb2.ACTOR_ROLE_ACTOR,
    "evaluator": learner_pb2.ACTOR_ROLE_EVALUATOR,
}
_ROLE_NAMES = {value: role for role, value in _ROLES.items()}


def tensor_to_proto(array: NDArray[Any]) -> tensor_pb2.Tensor:
    """Encode an array of any supported dtype in C order."""
    dtype = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    if dtype not in _DATA_TYPES:
        raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got {array.dtype}")
    data = np.ascontiguousarray(array, dtype=dtype)
    return tensor_pb2.Tensor(dtype=_DATA_TYPES[dtype], shape=array.shape, data=data.tobytes())


def tensor_from_proto(message: tensor_pb2.Tensor) -> NDArray[Any]:
    """Decode without copying: the array is a read-only view of the message's bytes."""
    dtype, shape = _dtype_from_proto(message.dtype), tuple(message.shape)
    if any(size < 0 for size in shape):
        raise InvalidInputError(f"tensor: shape must not be negative, got {list(shape)}")
    expected = math.prod(shape) * dtype.itemsize
    if len(message.data) != expected:
        raise InvalidInputError(f"tensor: {dtype}{list(shape)} must have {expected} bytes, got {len(message.data)}")
    return np.frombuffer(message.data, dtype).reshape(shape)


def environment_to_proto(spec: EnvironmentSpec) -> trajectory_pb2.EnvironmentSpec:
    """Encode an environment's spec."""
    return trajectory_pb2.EnvironmentSpec(
        environment_id=spec.environment_id,
        observations=_array_spec_to_proto(spec.observations),
        actions=_array_spec_to_proto(spec.actions),
        discrete_actions=spec.discrete_actions,
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
    )


def environment_from_proto(message: trajectory_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """Decode an environment's spec."""
    if not message.environment_id:
        raise InvalidInputError("environment: environment_id must not be empty")
    return EnvironmentSpec(
        environment_id=message.environment_id,
        observations=_array_spec_from_proto(message.observations),
        actions=_array_spec_from_proto(message.actions),
        discrete_actions=message.discrete_actions,
        max_episode_steps=message.max_episode_steps,
        reward_threshold=message.reward_threshold if message.HasField("reward_threshold") else None,
    )


def segment_to_proto(segment: Segment) -> trajectory_pb2.Segment:
    """Encode a segment."""
    return trajectory_pb2.Segment(
        sequence=segment.sequence,
        observations=tensor_to_proto(segment.observations),
        actions=tensor_to_proto(segment.actions),
        rewards=tensor_to_proto(segment.rewards),
        terminated=tensor_to_proto(segment.terminated),
        truncated=tensor_to_proto(segment.truncated),
        valid=tensor_to_proto(segment.valid),
        spans=[
            trajectory_pb2.PolicySpan(first_step=span.first_step, version=span.version, scheme=span.scheme)
            for span in segment.spans
        ],
        episodes=[episode_to_proto(episode) for episode in segment.episodes],
    )


def segment_from_proto(message: trajectory_pb2.Segment) -> Segment:
    """Decode a segment; its arrays are read-only views of the message."""
    return Segment(
        sequence=message.sequence,
        observations=tensor_from_proto(message.observations),
        actions=tensor_from_proto(message.actions),
        rewards=tensor_from_proto(message.rewards),
        terminated=tensor_from_proto(message.terminated),
        truncated=tensor_from_proto(message.truncated),
        valid=tensor_from_proto(message.valid),
        spans=tuple(PolicySpan(span.first_step, span.version, span.scheme) for span in message.spans),
        episodes=tuple(episode_from_proto(episode) for episode in message.episodes),
    )


def episode_to_proto(episode: Episode) -> trajectory_pb2.Episode:
    """Encode an episode."""
    return trajectory_pb2.Episode(
        episode_return=episode.episode_return, length=episode.length, environment=episode.environment
    )


def episode_from_proto(message: trajectory_pb2.Episode) -> Episode:
    """Decode an episode."""
    return Episode(message.episode_return, message.length, message.environment)


def evaluation_to_proto(evaluation: Evaluation) -> trajectory_pb2.Evaluation:
    """Encode an evaluation."""
    return trajectory_pb2.Evaluation(
        sequence=evaluation.sequence,
        policy_version=evaluation.policy_version,
        learner_step=evaluation.learner_step,
        scheme=evaluation.scheme,
        returns=evaluation.returns,
        lengths=evaluation.lengths,
        duration_s=evaluation.duration_s,
    )


def evaluation_from_proto(message: trajectory_pb2.Evaluation) -> Evaluation:
    """Decode an evaluation of at least one episode with finite returns."""
    if not message.returns or len(message.returns) != len(message.lengths):
        raise InvalidInputError(
            f"evaluation: needs as many returns as lengths and at least one, got {len(message.returns)} returns and "
            f"{len(message.lengths)} lengths"
        )
    if not np.isfinite(message.returns).all():
        raise InvalidInputError("evaluation: returns must be finite, got NaN or infinity")
    return Evaluation(
        sequence=message.sequence,
        policy_version=message.policy_version,
        learner_step=message.learner_step,
        scheme=message.scheme,
        returns=tuple(message.returns),
        lengths=tuple(message.lengths),
        duration_s=message.duration_s,
    )


def descriptor_to_proto(descriptor: PolicyDescriptor) -> policy_pb2.PolicyDescriptor:
    """Encode a policy's description."""
    report = descriptor.fidelity
    return policy_pb2.PolicyDescriptor(
        run_id=descriptor.run_id,
        version=descriptor.version,
        learner_step=descriptor.learner_step,
        scheme=descriptor.scheme,
        sha256=descriptor.sha256,
        size_bytes=descriptor.size_bytes,
        fp32_size_bytes=descriptor.fp32_size_bytes,
        snapshot_at=timestamp_to_proto(descriptor.snapshot_at),
        fidelity=policy_pb2.FidelityReport(
            observations=report.observations,
            mean_error=report.mean_error,
            max_error=report.max_error,
            relative_mean_error=report.relative_mean_error,
            relative_max_error=report.relative_max_error,
            argmax_agreement=report.argmax_agreement,
            float_layers=report.float_layers,
        ),
    )


def descriptor_from_proto(message: policy_pb2.PolicyDescriptor) -> PolicyDescriptor:
    """Decode a policy's description."""
    report = message.fidelity
    return PolicyDescriptor(
        run_id=message.run_id,
        version=message.version,
        learner_step=message.learner_step,
        scheme=message.scheme,
        sha256=message.sha256,
        size_bytes=message.size_bytes,
        fp32_size_bytes=message.fp32_size_bytes,
        snapshot_at=timestamp_from_proto(message.snapshot_at),
        fidelity=FidelityReport(
            observations=report.observations,
            mean_error=report.mean_error,
            max_error=report.max_error,
            relative_mean_error=report.relative_mean_error,
            relative_max_error=report.relative_max_error,
            argmax_agreement=report.argmax_agreement if report.HasField("argmax_agreement") else None,
            float_layers=tuple(report.float_layers),
        ),
    )


def retained_to_proto(policy: RetainedPolicy) -> quantizer_pb2.RetainedPolicy:
    """Encode a retained version."""
    return quantizer_pb2.RetainedPolicy(
        version=policy.version,
        learner_step=policy.learner_step,
        schemes=policy.schemes,
        mean_return=policy.mean_return,
    )


def retained_from_proto(message: quantizer_pb2.RetainedPolicy) -> RetainedPolicy:
    """Decode a retained version."""
    return RetainedPolicy(
        version=message.version,
        learner_step=message.learner_step,
        schemes=tuple(message.schemes),
        mean_return=message.mean_return if message.HasField("mean_return") else None,
    )


def receipt_to_proto(receipt: Receipt) -> quantizer_pb2.Receipt:
    """Encode a receipt."""
    return quantizer_pb2.Receipt(
        version=receipt.version,
        policies=[descriptor_to_proto(descriptor) for descriptor in receipt.policies],
        emit_seconds=receipt.emit_seconds,
        subscribers=receipt.subscribers,
        process=process_to_proto(receipt.process),
    )


def receipt_from_proto(message: quantizer_pb2.Receipt) -> Receipt:
    """Decode a receipt."""
    return Receipt(
        version=message.version,
        policies=tuple(descriptor_from_proto(descriptor) for descriptor in message.policies),
        emit_seconds=message.emit_seconds,
        subscribers=message.subscribers,
        process=process_from_proto(message.process),
    )


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
            seed=run.seed,
            environments_per_actor=run.environments_per_actor,
            segment_length=run.segment_length,
            max_segment_bytes=run.max_segment_bytes,
            queue_segments=run.queue_segments,
            scheme=run.scheme,
            evaluation_episodes=run.evaluation_episodes,
            evaluation_period_updates=run.evaluation_period_updates,
        ),
        actor_index=membership.actor_index,
        epsilons=membership.epsilons,
        resume_after_sequence=membership.resume_after_sequence,
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
            seed=run.seed,
            environments_per_actor=run.environments_per_actor,
            segment_length=run.segment_length,
            max_segment_bytes=run.max_segment_bytes,
            queue_segments=run.queue_segments,
            scheme=run.scheme,
            evaluation_episodes=run.evaluation_episodes,
            evaluation_period_updates=run.evaluation_period_updates,
            report_period_s=run.report_period.ToNanoseconds() / 1e9,
        ),
        actor_index=message.actor_index,
        epsilons=tuple(message.epsilons),
        resume_after_sequence=message.resume_after_sequence,
    )


def process_to_proto(stats: ProcessStats) -> process_pb2.ProcessStats:
    """Encode a process's resources."""
    return process_pb2.ProcessStats(
        name=stats.name,
        role=stats.role,
        node=stats.node,
        pid=stats.pid,
        started_at=timestamp_to_proto(stats.started_at),
        cpu_seconds=stats.cpu_seconds,
        resident_bytes=stats.resident_bytes,
        peak_resident_bytes=stats.peak_resident_bytes,
    )


def process_from_proto(message: process_pb2.ProcessStats) -> ProcessStats:
    """Decode a process's resources."""
    return ProcessStats(
        name=message.name,
        role=message.role,
        node=message.node,
        pid=message.pid,
        started_at=timestamp_from_proto(message.started_at),
        cpu_seconds=message.cpu_seconds,
        resident_bytes=message.resident_bytes,
        peak_resident_bytes=message.peak_resident_bytes,
    )


def node_energy_to_proto(energy: NodeEnergy) -> process_pb2.NodeEnergy:
    """Encode a node's energy."""
    return process_pb2.NodeEnergy(
        node=energy.node,
        cpu_kwh=energy.cpu_kwh,
        ram_kwh=energy.ram_kwh,
        gpu_kwh=energy.gpu_kwh,
        co2_kg=energy.co2_kg,
        busy_cpu_seconds=energy.busy_cpu_seconds,
        method=energy.method,
    )


def node_energy_from_proto(message: process_pb2.NodeEnergy) -> NodeEnergy:
    """Decode a node's energy; all figures must be finite and not negative."""
    figures = (message.cpu_kwh, message.ram_kwh, message.gpu_kwh, message.co2_kg, message.busy_cpu_seconds)
    if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
        raise InvalidInputError(f"energy: figures must be finite and at least 0, got {figures}")
    return NodeEnergy(message.node, *figures, method=message.method)


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
    )


def actor_report_from_proto(message: learner_pb2.ActorReport) -> ActorReport:
    """Decode an actor's report."""
    return ActorReport(
        policy_version=message.policy_version,
        scheme=message.scheme,
        environment_steps=message.environment_steps,
        steps_per_second=message.steps_per_second,
        queued_segments=message.queued_segments,
        activation_seconds=tuple(message.activation_seconds),
        process=process_from_proto(message.process),
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
    value: learner_pb2.RunState = learner_pb2.RunState.Value(f"RUN_STATE_{state.name}")
    return value


def run_state_from_proto(value: learner_pb2.RunState) -> RunState:
    """Decode the state of a run."""
    name: str = learner_pb2.RunState.Name(value)
    return RunState[name.removeprefix("RUN_STATE_")]


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
    )


def timestamp_to_proto(unix_seconds: float) -> Timestamp:
    """Encode unix seconds."""
    message = Timestamp()
    message.FromNanoseconds(round(unix_seconds * 1e9))
    return message


def timestamp_from_proto(message: Timestamp) -> float:
    """Decode to unix seconds."""
    return message.ToNanoseconds() / 1e9


def _array_spec_to_proto(spec: ArraySpec) -> tensor_pb2.TensorSpec:
    return tensor_pb2.TensorSpec(
        dtype=_DATA_TYPES[np.dtype(spec.dtype)], shape=spec.shape, low=spec.low, high=spec.high
    )


def _array_spec_from_proto(message: tensor_pb2.TensorSpec) -> ArraySpec:
    return ArraySpec(
        shape=tuple(message.shape),
        dtype=_dtype_from_proto(message.dtype).name,
        low=message.low if message.HasField("low") else None,
        high=message.high if message.HasField("high") else None,
    )


def _dtype_from_proto(value: tensor_pb2.DataType) -> np.dtype[Any]:
    if value not in _DTYPES:
        raise InvalidInputError(f"tensor: dtype must be one of {_names()}, got data type {value}")
    return _DTYPES[value]


def _names() -> str:
    return ", ".join(dtype.name for dtype in _DATA_TYPES)
