"""Messages of segments, episodes, evaluations and environment specs."""

from dataclasses import replace

import numpy as np

from actorq.domain import limits
from actorq.domain.columns import Array
from actorq.domain.environments import MAX_ARGUMENTS_BYTES, EnvironmentArguments
from actorq.domain.goals import Goal
from actorq.domain.leaves import KINDS, Leaf, packed_nbytes
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Episode, Evaluation, PolicySpan, Segment
from actorq.errors import InvalidInputError
from actorq.v1 import trajectory_pb2
from actorq.wire import bounds
from actorq.wire.fields import Fields, each, optional
from actorq.wire.tensors import array_spec_from_proto, array_spec_to_proto, tensor_from_proto, tensor_to_proto


def environment_to_proto(spec: EnvironmentSpec) -> trajectory_pb2.EnvironmentSpec:
    """Encode an environment's spec."""
    fields = {name: value for name, value in vars(spec).items() if name not in ("parts", "action_parts")}
    encoded = {
        "observations": array_spec_to_proto(spec.observations),
        "actions": array_spec_to_proto(spec.actions),
        "leaves": map(_leaf_to_proto, spec.leaves),
        "environment_arguments": spec.environment_arguments.to_text(),
        "goal": trajectory_pb2.Goal(**vars(spec.goal)) if spec.goal else None,
    }
    return trajectory_pb2.EnvironmentSpec(**fields | encoded)


_ENVIRONMENT = Fields(
    trajectory_pb2.EnvironmentSpec, "environment.", {bounds.name: "environment_id", bounds.figure: "reward_threshold"}
)


def environment_from_proto(message: trajectory_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """Decode an environment's spec."""
    observations = _with_leaves(array_spec_from_proto(message.observations), message)
    spec = EnvironmentSpec(
        **_ENVIRONMENT.of(message),
        observations=observations,
        actions=array_spec_from_proto(message.actions),
        discrete_actions=bounds.count(
            "environment.discrete_actions", message.discrete_actions, limits.MAX_DISCRETE_ACTIONS
        ),
        max_episode_steps=message.max_episode_steps,
        frame_stack=max(1, bounds.count("environment.frame_stack", message.frame_stack, limits.MAX_FRAME_STACK)),
        environment_arguments=environment_arguments_from_text(message.environment_arguments),
        choices=tuple(bounds.items("environment.choices", message.choices, limits.MAX_PARTS)),
        goal=optional(message, "goal", lambda goal: _goal_from_proto(goal, observations)),
    )
    _check_parts(spec)
    return spec


def _leaf_to_proto(leaf: Leaf) -> trajectory_pb2.Leaf:
    spec = array_spec_to_proto(ArraySpec(leaf.shape, leaf.dtype))
    kind = trajectory_pb2.LeafKind.Name(1 + KINDS.index(leaf.kind))
    return trajectory_pb2.Leaf(name=leaf.name, kind=kind, spec=spec, categories=leaf.categories)


def _leaf_from_proto(message: trajectory_pb2.Leaf) -> Leaf:
    name, spec = bounds.name("environment.leaves", message.name), array_spec_from_proto(message.spec)
    if not 1 <= message.kind <= len(KINDS):
        raise InvalidInputError(f"environment.leaves: {name}: kind must be 1 to {len(KINDS)}, got {message.kind}")
    leaf = Leaf(
        name, KINDS[message.kind - 1], spec.shape, spec.dtype, bounds.count("environment.leaves", message.categories)
    )
    if fault := leaf.fault:
        raise InvalidInputError(f"environment.leaves: {name}: {fault}")
    return leaf


def _with_leaves(observations: ArraySpec, message: trajectory_pb2.EnvironmentSpec) -> ArraySpec:
    """Decode the leaves, whose bytes are one observation."""
    encoded = bounds.items("environment.leaves", message.leaves, limits.MAX_LEAVES)
    leaves = tuple(map(_leaf_from_proto, encoded))
    if len({leaf.name for leaf in leaves}) < len(leaves) or sum(leaf.kind == "mask" for leaf in leaves) > 1:
        raise InvalidInputError("environment.leaves: a name, or a mask, came twice")
    if leaves and observations != ArraySpec((packed_nbytes(leaves),), "uint8"):
        raise InvalidInputError(
            f"environment.observations: must be uint8[{packed_nbytes(leaves)}], the bytes of the leaves, got "
            f"{observations.dtype}{list(observations.shape)}"
        )
    return replace(observations, leaves=leaves)


def _check_parts(spec: EnvironmentSpec) -> None:
    """Raise InvalidInputError unless choices, actions and mask fit each other."""
    if spec.choices:
        kind, shape = np.dtype(spec.actions.dtype).kind, spec.actions.shape
        fits = len(shape) == 1 and (shape[0] >= len(spec.choices) if kind == "f" else shape == (len(spec.choices),))
        if not fits or min(spec.choices) < 1 or sum(spec.choices) != spec.discrete_actions:
            raise InvalidInputError(
                f"environment.choices: {len(spec.choices)} parts of {spec.discrete_actions} values in all do not fit "
                f"actions {spec.actions.dtype}{list(shape)}"
            )
    if spec.mask is not None and spec.mask.shape != (spec.discrete_actions,):
        raise InvalidInputError(
            f"environment.leaves: a mask must have {spec.discrete_actions} choices, got {list(spec.mask.shape)}"
        )


def _goal_from_proto(message: trajectory_pb2.Goal, observations: ArraySpec) -> Goal:
    goal = Goal(achieved=message.achieved, desired=message.desired, size=message.size)
    if observations.leaves or len(observations.shape) != 1 or not goal.fits(observations.shape[0]):
        raise InvalidInputError(
            f"environment.goal: must be two parts of a vector of observations, got {goal} for observations "
            f"{list(observations.shape)}"
        )
    return goal


def environment_arguments_from_text(text: str) -> EnvironmentArguments:
    """Decode an environment's arguments."""
    return EnvironmentArguments.from_text(bounds.text("environment_arguments", text, MAX_ARGUMENTS_BYTES))


def segment_to_proto(segment: Segment) -> trajectory_pb2.Segment:
    """Encode a segment."""
    return trajectory_pb2.Segment(
        sequence=segment.sequence,
        columns=[
            trajectory_pb2.Column(name=name, values=tensor_to_proto(values)) for name, values in segment.columns.items()
        ],
        spans=[trajectory_pb2.PolicySpan(**vars(span)) for span in segment.spans],
        episodes=[episode_to_proto(episode) for episode in segment.episodes],
        follows=segment.follows,
    )


def segment_from_proto(message: trajectory_pb2.Segment) -> Segment:
    """Decode a segment. Its arrays are read-only."""
    columns: dict[str, Array] = {}
    for column in bounds.items("segment.columns", message.columns, limits.MAX_COLUMNS):
        name = bounds.name("segment.columns", column.name)
        if name in columns:
            raise InvalidInputError(f"segment.columns: {name} came twice")
        columns[name] = tensor_from_proto(column.values)
    return Segment(
        sequence=bounds.count("segment.sequence", message.sequence),
        columns=columns,
        spans=tuple(map(_span_from_proto, bounds.items("segment.spans", message.spans, limits.MAX_SPANS))),
        episodes=tuple(
            map(episode_from_proto, bounds.items("segment.episodes", message.episodes, limits.MAX_SEGMENT_EPISODES))
        ),
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
        success=message.success if message.HasField("success") else None,
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
    if len(message.successes) not in (0, len(message.returns)):
        raise InvalidInputError(
            f"evaluation: needs as many successes as returns, or none, got {len(message.successes)} for "
            f"{len(message.returns)} returns"
        )
    returns = each(bounds.figure, "evaluation.returns", message.returns, limits.MAX_EVALUATION_EPISODES)
    lengths, successes = tuple(message.lengths), tuple(message.successes)
    return Evaluation(returns=returns, lengths=lengths, successes=successes, **_EVALUATION.of(message))
