"""Messages of segments, episodes, evaluations and environment specs."""

from actorq.domain import limits
from actorq.domain.environments import MAX_ARGUMENTS_BYTES, EnvironmentArguments
from actorq.domain.trajectory import EnvironmentSpec, Episode, Evaluation, PolicySpan, Segment
from actorq.errors import InvalidInputError
from actorq.v1 import trajectory_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields, each, optional
from actorq.wire.tensors import array_spec_from_proto, array_spec_to_proto, tensor_from_proto, tensor_to_proto


def environment_to_proto(spec: EnvironmentSpec) -> trajectory_pb2.EnvironmentSpec:
    """Encode an environment's spec."""
    encoded = {
        "observations": array_spec_to_proto(spec.observations),
        "actions": array_spec_to_proto(spec.actions),
        "environment_arguments": spec.environment_arguments.to_text(),
    }
    return trajectory_pb2.EnvironmentSpec(**vars(spec) | encoded)


_ENVIRONMENT = Fields(
    trajectory_pb2.EnvironmentSpec, "environment.", {bounds.name: "environment_id", bounds.figure: "reward_threshold"}
)


def environment_from_proto(message: trajectory_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """Decode an environment's spec."""
    return EnvironmentSpec(
        **_ENVIRONMENT.of(message),
        observations=array_spec_from_proto(message.observations),
        actions=array_spec_from_proto(message.actions),
        discrete_actions=bounds.count(
            "environment.discrete_actions", message.discrete_actions, limits.MAX_DISCRETE_ACTIONS
        ),
        max_episode_steps=message.max_episode_steps,
        frame_stack=max(1, bounds.count("environment.frame_stack", message.frame_stack, limits.MAX_FRAME_STACK)),
        environment_arguments=environment_arguments_from_text(message.environment_arguments),
    )


def environment_arguments_from_text(text: str) -> EnvironmentArguments:
    """Decode an environment's arguments."""
    return EnvironmentArguments.from_text(bounds.text("environment_arguments", text, MAX_ARGUMENTS_BYTES))


def segment_to_proto(segment: Segment) -> trajectory_pb2.Segment:
    """Encode a segment."""
    greedy, logarithms = segment.greedy_actions, segment.log_probabilities
    return trajectory_pb2.Segment(
        sequence=segment.sequence,
        observations=tensor_to_proto(segment.observations),
        actions=tensor_to_proto(segment.actions),
        rewards=tensor_to_proto(segment.rewards),
        terminated=tensor_to_proto(segment.terminated),
        truncated=tensor_to_proto(segment.truncated),
        valid=tensor_to_proto(segment.valid),
        spans=[trajectory_pb2.PolicySpan(**vars(span)) for span in segment.spans],
        episodes=[episode_to_proto(episode) for episode in segment.episodes],
        ages=tensor_to_proto(segment.ages),
        greedy_actions=None if greedy is None else tensor_to_proto(greedy),
        log_probabilities=None if logarithms is None else tensor_to_proto(logarithms),
        follows=segment.follows,
    )


def segment_from_proto(message: trajectory_pb2.Segment) -> Segment:
    """Decode a segment. Its arrays are read-only."""
    return Segment(
        sequence=bounds.count("segment.sequence", message.sequence),
        observations=tensor_from_proto(message.observations),
        actions=tensor_from_proto(message.actions),
        rewards=tensor_from_proto(message.rewards),
        terminated=tensor_from_proto(message.terminated),
        truncated=tensor_from_proto(message.truncated),
        valid=tensor_from_proto(message.valid),
        spans=tuple(map(_span_from_proto, bounds.items("segment.spans", message.spans, limits.MAX_SPANS))),
        ages=tensor_from_proto(message.ages),
        episodes=tuple(
            map(episode_from_proto, bounds.items("segment.episodes", message.episodes, limits.MAX_SEGMENT_EPISODES))
        ),
        greedy_actions=optional(message, "greedy_actions", tensor_from_proto),
        log_probabilities=optional(message, "log_probabilities", tensor_from_proto),
        follows=message.follows,
    )


def _span_from_proto(message: trajectory_pb2.PolicySpan) -> PolicySpan:
    return PolicySpan(
        first_step=message.first_step,
        version=bounds.version("span.version", message.version),
        scheme=bounds.name("span.scheme", message.scheme),
    )


def episode_to_proto(episode: Episode) -> trajectory_pb2.Episode:
    """Encode an episode."""
    return trajectory_pb2.Episode(**vars(episode))


def episode_from_proto(message: trajectory_pb2.Episode) -> Episode:
    """Decode an episode."""
    return Episode(
        episode_return=bounds.figure("episode.episode_return", message.episode_return),
        length=message.length,
        environment=message.environment,
    )


def evaluation_to_proto(evaluation: Evaluation) -> trajectory_pb2.Evaluation:
    """Encode an evaluation."""
    return trajectory_pb2.Evaluation(**vars(evaluation))


_EVALUATION = Fields(
    trajectory_pb2.Evaluation,
    "evaluation.",
    {
        bounds.count: "sequence learner_step",
        bounds.version: "policy_version",
        bounds.name: "scheme",
        bounds.seconds: "duration_s",
    },
)


def evaluation_from_proto(message: trajectory_pb2.Evaluation) -> Evaluation:
    """Decode an evaluation of 1 to 10,000 episodes."""
    if not message.returns or len(message.returns) != len(message.lengths):
        raise InvalidInputError(
            f"evaluation: needs as many returns as lengths and at least one, got {len(message.returns)} returns and "
            f"{len(message.lengths)} lengths"
        )
    returns = each(bounds.figure, "evaluation.returns", message.returns, limits.MAX_EVALUATION_EPISODES)
    return Evaluation(returns=returns, lengths=tuple(message.lengths), **_EVALUATION.of(message))
