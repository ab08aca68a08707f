"""Segments, episodes, evaluations and the spec of an environment."""

import numpy as np

from actorq.errors import InvalidInputError
from actorq.trajectory import EnvironmentSpec, Episode, Evaluation, PolicySpan, Segment
from actorq.v1 import trajectory_pb2
from actorq.wire.tensors import array_spec_from_proto, array_spec_to_proto, tensor_from_proto, tensor_to_proto


def environment_to_proto(spec: EnvironmentSpec) -> trajectory_pb2.EnvironmentSpec:
    """Encode an environment's spec."""
    return trajectory_pb2.EnvironmentSpec(
        environment_id=spec.environment_id,
        observations=array_spec_to_proto(spec.observations),
        actions=array_spec_to_proto(spec.actions),
        discrete_actions=spec.discrete_actions,
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
        frame_stack=spec.frame_stack,
    )


def environment_from_proto(message: trajectory_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """Decode an environment's spec."""
    if not message.environment_id:
        raise InvalidInputError("environment: environment_id must not be empty")
    return EnvironmentSpec(
        environment_id=message.environment_id,
        observations=array_spec_from_proto(message.observations),
        actions=array_spec_from_proto(message.actions),
        discrete_actions=message.discrete_actions,
        max_episode_steps=message.max_episode_steps,
        reward_threshold=message.reward_threshold if message.HasField("reward_threshold") else None,
        frame_stack=max(1, message.frame_stack),
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
        ages=tensor_to_proto(segment.ages),
        greedy_actions=None if segment.greedy_actions is None else tensor_to_proto(segment.greedy_actions),
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
        ages=tensor_from_proto(message.ages),
        episodes=tuple(episode_from_proto(episode) for episode in message.episodes),
        greedy_actions=tensor_from_proto(message.greedy_actions) if message.HasField("greedy_actions") else None,
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
