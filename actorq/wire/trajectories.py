"""Messages of segments, episodes, evaluations and environment specs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from actorq.domain import limits
from actorq.domain.columns import Array
from actorq.domain.environments import MAX_ARGUMENTS_BYTES, EnvironmentArguments, Group
from actorq.domain.goals import Goal
from actorq.domain.leaves import KINDS, Leaf, packed_nbytes
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Episode, Evaluation, PolicySpan, Segment
from actorq.errors import InvalidInputError
from actorq.v1 import trajectory_pb2
from actorq.wire import bounds
from actorq.wire.fields import Kind, Pair, enumeration, many, nested, optional
from actorq.wire.tensors import (
    ARRAY_SPEC,
    array_spec_from_proto,
    array_spec_to_proto,
    tensor_from_proto,
    tensor_to_proto,
)


def _arguments(what: str, text: str) -> EnvironmentArguments:
    return EnvironmentArguments.from_text(bounds.text(what, text, MAX_ARGUMENTS_BYTES))


def _leaf(**fields: Any) -> Leaf:
    leaf = Leaf(**fields)
    if fault := leaf.fault:
        raise InvalidInputError(f"environment.leaves: {leaf.name}: {fault}")
    return leaf


LEAF_KIND = enumeration(trajectory_pb2.LeafKind, {kind: 1 + number for number, kind in enumerate(KINDS)})
_LEAF = Pair(
    trajectory_pb2.Leaf,
    _leaf,
    {bounds.name: "name", LEAF_KIND: "kind", bounds.count: "categories", bounds.anything: "critic"},
    prefix="environment.leaves.",
)


def _leaf_to_proto(leaf: Leaf) -> trajectory_pb2.Leaf:
    return _LEAF.to_proto(leaf, spec=array_spec_to_proto(ArraySpec(leaf.shape, leaf.dtype)))


def _leaf_from_proto(message: trajectory_pb2.Leaf) -> Leaf:
    spec = array_spec_from_proto(message.spec)
    return _LEAF.from_proto(message, shape=spec.shape, dtype=spec.dtype)


def _environment(observations: ArraySpec, leaves: tuple[Leaf, ...], **fields: Any) -> EnvironmentSpec:
    """The spec. Raises InvalidInputError when its parts do not fit each other."""
    if len({leaf.name for leaf in leaves}) < len(leaves) or sum(leaf.kind == "mask" for leaf in leaves) > 1:
        raise InvalidInputError("environment.leaves: a name, or a mask, came twice")
    if leaves and observations != ArraySpec((packed_nbytes(leaves),), "uint8"):
        raise InvalidInputError(
            f"environment.observations: must be uint8[{packed_nbytes(leaves)}], the bytes of the leaves, got "
            f"{observations.dtype}{list(observations.shape)}"
        )
    spec = EnvironmentSpec(observations=replace(observations, leaves=leaves), **fields)
    if spec.critic_leaves and not spec.encoded:
        raise InvalidInputError("environment.leaves: the policy needs a leaf, but only critics see them")
    if len({*spec.agents}) < len(spec.agents):
        raise InvalidInputError("environment.agents: a name came twice")
    if spec.groups and (fault := group_fault(spec)):
        raise InvalidInputError(f"environment.groups: {fault}")
    sizes, kind, shape = spec.sizes, np.dtype(spec.actions.dtype).kind, spec.actions.shape
    if sizes:
        mixed = len(shape) == 1 and kind == "f" and shape[0] >= len(sizes)
        fits = mixed or (kind in "iu" and shape == ((len(sizes),) if shape else ()) and (shape or len(sizes) == 1))
        if not fits or min(sizes) < 1 or sum(sizes) > limits.MAX_DISCRETE_ACTIONS:
            raise InvalidInputError(
                f"environment.sizes: {len(sizes)} parts of {sum(sizes)} values in all do not fit actions "
                f"{spec.actions.dtype}{list(shape)}, or are more than {limits.MAX_DISCRETE_ACTIONS}"
            )
    if spec.mask is not None and spec.mask.shape != (sum(sizes),):
        raise InvalidInputError(f"environment.leaves: a mask must have {sum(sizes)} choices, got {[*spec.mask.shape]}")
    ranges, vector = spec.indicators, spec.for_critics.vector
    rises = list(ranges) == sorted({*ranges}) and len(ranges) % 2 == 0
    if ranges and (vector is None or not rises or ranges[-1] > math.prod(vector.shape)):
        raise InvalidInputError(
            f"environment.indicators: must be rising components of the vector of observations, got {list(ranges[:8])}"
        )
    goal, shape = spec.goal, observations.shape
    if goal is not None and (leaves or len(shape) != 1 or not goal.fits(shape[0])):
        raise InvalidInputError(
            f"environment.goal: must be two parts of a vector of observations, got {goal} for observations "
            f"{list(shape)}"
        )
    return spec


def _stack(what: str, frames: int) -> int:
    # 0 means no stack.
    return max(1, bounds.within(what, frames, 0, limits.MAX_FRAME_STACK))


def group_fault(spec: EnvironmentSpec) -> str:
    """A mismatch between groups, agents and the vector of observations; empty if there is none."""
    bits = [group.bit for group in spec.groups]
    if sorted(agent for group in spec.groups for agent in group.agents) != sorted(spec.agents):
        return "each agent must be in one group"
    if len({group.name for group in spec.groups}) < len(bits) or not all(group.agents for group in spec.groups):
        return "a name came twice, or a group has no agents"
    vector = spec.for_critics.vector
    if vector is None or bits != [*range(bits[0], bits[0] + len(bits))] or bits[-1] >= math.prod(vector.shape):
        return f"their bits must be neighboring components of the vector of observations, got {bits[:8]}"
    seen, marked = spec.sees_number[bits[0] : bits[-1] + 1], spec.for_critics.is_indicator[bits[0] : bits[-1] + 1]
    return "" if seen.all() and marked.all() else "their bits must be indicators that the policy sees"


ENVIRONMENT_ARGUMENTS = Kind(EnvironmentArguments.to_text, _arguments)
_GOAL = Pair(trajectory_pb2.Goal, Goal, {bounds.anything: "achieved desired size"})
AGENT_GROUP = Pair(
    trajectory_pb2.AgentGroup,
    Group,
    {bounds.name: "name", many(bounds.name, limits.MAX_AGENTS): "agents", bounds.anything: "bit"},
    prefix="groups.",
)
ENVIRONMENT = Pair(
    trajectory_pb2.EnvironmentSpec,
    _environment,
    {
        bounds.name: "environment_id",
        ARRAY_SPEC: "observations actions",
        many(nested(_leaf_to_proto, _leaf_from_proto), limits.MAX_LEAVES): "leaves",
        many(bounds.anything, limits.MAX_PARTS): "sizes indicators",
        many(bounds.name, limits.MAX_AGENTS): "agents",
        many(AGENT_GROUP, limits.MAX_AGENTS): "groups",
        bounds.anything: "max_episode_steps",
        bounds.figure: "reward_threshold",
        _stack: "frame_stack",
        ENVIRONMENT_ARGUMENTS: "environment_arguments",
        optional(_GOAL): "goal",
    },
    prefix="environment.",
)
environment_to_proto, environment_from_proto = ENVIRONMENT.both


# Written by hand, because a segment may have many episodes and a Pair takes twice as long.
def episode_to_proto(episode: Episode) -> trajectory_pb2.Episode:
    """Encode an episode."""
    return trajectory_pb2.Episode(**episode._asdict())


def episode_from_proto(message: trajectory_pb2.Episode) -> Episode:
    """Decode an episode."""
    return Episode(
        episode_return=bounds.figure("episode.episode_return", message.episode_return),
        length=message.length,
        environment=message.environment,
        success=message.success if message.HasField("success") else None,
        agent_returns=_figures("episode.agent_returns", message.agent_returns) if message.agent_returns else (),
    )


_figures = many(bounds.figure, limits.MAX_AGENTS).decode


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


def _evaluation(**fields: Any) -> Evaluation:
    evaluation = Evaluation(**fields)
    returns, lengths, successes = map(len, (evaluation.returns, evaluation.lengths, evaluation.successes))
    if not returns or returns != lengths:
        raise InvalidInputError(
            f"evaluation: needs as many returns as lengths and at least one, got {returns} returns and {lengths} "
            "lengths"
        )
    if successes not in (0, returns):
        raise InvalidInputError(
            f"evaluation: needs as many successes as returns, or none, got {successes} for {returns} returns"
        )
    agents, of_agents = len(evaluation.agents), len(evaluation.agent_returns)
    if of_agents != returns * agents or len({*evaluation.agents}) < agents:
        raise InvalidInputError(
            f"evaluation: needs a return of each of {agents} different agents in {returns} episodes, got {of_agents}"
        )
    return evaluation


EVALUATION = Pair(
    trajectory_pb2.Evaluation,
    _evaluation,
    {
        bounds.count: "sequence learner_step",
        bounds.version: "policy_version",
        bounds.name: "scheme",
        many(bounds.figure, limits.MAX_EVALUATION_EPISODES): "returns",
        many(bounds.name, limits.MAX_AGENTS): "agents",
        many(bounds.figure, limits.MAX_AGENT_RETURNS): "agent_returns",
        many(bounds.anything, limits.MAX_EVALUATION_EPISODES): "lengths successes",
        bounds.seconds: "duration_s",
    },
    prefix="evaluation.",
)
evaluation_to_proto, evaluation_from_proto = EVALUATION.both
