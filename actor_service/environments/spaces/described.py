"""Describes an environment with one array for each observation and each action."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import gymnasium

from actor_service.environments.spaces.actions import JointActions, action_spec
from actor_service.environments.spaces.critics import CriticParts
from actor_service.environments.spaces.observations import (
    indicators_of,
    is_plane,
    leaves_of,
    observation_spec,
    parts_of,
)
from actor_service.environments.spaces.packing import PackedObservations, Source, needs_packing
from actor_service.goals.rewards import goal_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError

W = TypeVar("W")
Environment = gymnasium.Env[Any, Any]


def spec_of(
    environment_id: str, first: Environment, joint: JointActions | None, limit: int, threshold: float | None
) -> EnvironmentSpec:
    """The description of an environment with one observation and one action. Raises UserError."""
    actions, sizes = action_spec(
        environment_id, first.action_space, joint.sizes if joint and not joint.combined else ()
    )
    packed = wrapper_of(first, PackedObservations)
    parts, indicators = (packed.parts, packed.indicators) if packed else _flattened(first)
    if packed and any(leaf.critic for leaf in packed.leaves) and goal_of(environment_id, packed.env) is not None:
        raise UserError(
            f"critic_leaves: environment {environment_id} has goals, which hindsight replaces in one vector that all "
            "networks see; leave --critic-leaves out"
        )
    observations = observation_spec(environment_id, first.observation_space)
    return EnvironmentSpec(
        environment_id=environment_id,
        observations=replace(observations, leaves=packed.leaves if packed else ()),
        actions=actions,
        sizes=sizes,
        max_episode_steps=limit,
        goal=None if (joined := wrapper_of(first, JoinedObservations)) is None else goal_of(environment_id, joined.env),
        parts=parts,
        indicators=indicators,
        action_parts=joint.text if joint else "",
        reward_threshold=threshold,
    )


class JoinedObservations(gymnasium.wrappers.FlattenObservation):
    """An environment whose observations `with_one_observation` has joined."""


def with_one_observation(
    environment: Environment, mask: Source, sizes: Sequence[int], combined: bool, critics: CriticParts
) -> Environment:
    """The environment with observations of one array, if they can be joined or packed."""
    space = environment.observation_space
    if needs_packing(space, mask, critics):
        return PackedObservations(environment, mask, sizes, combined, critics)
    if is_plane(space):
        return gymnasium.wrappers.ReshapeObservation(environment, (*(space.shape or ()), 1))
    if parts_of(space):
        return JoinedObservations(environment)
    return environment


def wrapper_of(environment: Environment, kind: type[W]) -> W | None:
    """The wrapper of this kind; None if there is none."""
    while isinstance(environment, gymnasium.Wrapper):
        if isinstance(environment, kind):
            return environment
        environment = environment.env
    return None


def _flattened(environment: Environment) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The parts of flattened observations in words, and which components are bits or one-hot categories."""
    flattened = wrapper_of(environment, gymnasium.wrappers.FlattenObservation)
    if flattened is None:
        return (), ()
    space = flattened.env.observation_space
    return parts_of(space), indicators_of(leaf for _, leaf in leaves_of(space))
