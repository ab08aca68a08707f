"""Gymnasium's registered environments: classic control, Box2D, MuJoCo, and the user's own."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from actor_service.environments.keywords import fitting_keywords
from actor_service.environments.loop import LoopedEnvironments
from actor_service.environments.rendering import draw_fast, prepare_mujoco, wants_mujoco
from actor_service.environments.spaces import (
    JointActions,
    action_spec,
    is_plane,
    observation_spec,
    parts_of,
    with_one_action,
)
from actor_service.goals.rewards import GoalRewards, goal_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError

Wrap = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


def make(
    environment_id: str,
    count: int,
    rendered: bool,
    wrappers: Sequence[Wrap] = (),
    /,
    *,
    max_episode_steps: int | None = None,
    **keywords: Any,
) -> LoopedEnvironments:
    """A batch of a registered environment. Raises UserError when its spaces are not supported."""
    module, _, name = environment_id.rpartition(":")
    if module:
        __import__(module)
    registered = gymnasium.spec(name)
    limit = (registered.max_episode_steps or 0) if max_episode_steps is None else max_episode_steps
    if not isinstance(limit, int) or not (max_episode_steps is None or limit >= 1) or limit >= 2**32:
        raise UserError(f"environment_args: max_episode_steps must be a whole number from 1 to 2^32 - 1, got {limit!r}")
    if any(isinstance(value, list | dict) for value in keywords.values()):
        keywords = fitting_keywords(_creator(registered), keywords)
    if rendered:
        keywords["render_mode"] = "rgb_array"
    if wants_mujoco(registered.entry_point):
        prepare_mujoco(rendered or keywords.get("render_mode") is not None)

    def single() -> gymnasium.Env[Any, Any]:
        # The batch enforces the step limit, unless a wrapper may need it. The loop's calls need no checker.
        environment: gymnasium.Env[Any, Any] = gymnasium.make(
            environment_id,
            max_episode_steps=(wrappers and limit) or -1,
            disable_env_checker=True,
            **keywords,
        )
        # This wrapper's check of the order of calls costs as much as a step of a small environment.
        if isinstance(environment, gymnasium.wrappers.OrderEnforcing):
            environment = environment.env
        for wrap in wrappers:
            environment = wrap(environment)
        if is_plane(environment.observation_space):
            shape = (*(environment.observation_space.shape or ()), 1)
            environment = gymnasium.wrappers.ReshapeObservation(environment, shape)
        elif parts_of(environment.observation_space):
            environment = _Joined(environment)
        environment = with_one_action(environment)
        if rendered and wants_mujoco(registered.entry_point):
            draw_fast(environment.unwrapped.model)  # type: ignore[attr-defined]
        return environment

    if rendered and "rgb_array" not in _render_modes(registered):
        raise UserError(f"environment {environment_id}: it cannot render pictures (no render mode rgb_array)")
    first = single()
    joined = _joined(first)
    if wrappers:
        limit = (first.spec and first.spec.max_episode_steps) or 0
    try:
        actions, discrete_actions = action_spec(environment_id, first.action_space)
        spec = EnvironmentSpec(
            environment_id=environment_id,
            observations=observation_spec(environment_id, first.observation_space),
            actions=actions,
            discrete_actions=discrete_actions,
            max_episode_steps=limit,
            goal=None if joined is None else goal_of(environment_id, joined.env),
            parts=_parts(first),
            action_parts=first.text if isinstance(first, JointActions) else "",
            reward_threshold=None if registered.reward_threshold is None else float(registered.reward_threshold),
        )
    except UserError:
        first.close()
        raise
    singles = [first, *(single() for _ in range(count - 1))]
    made = LoopedEnvironments(spec, singles, single, 0 if wrappers else limit)
    if joined is not None and spec.goal is not None:
        made.goal_rewards = GoalRewards(environment_id, joined.env)
    return made


class _Joined(gymnasium.wrappers.FlattenObservation):
    """An environment whose observations this module has joined."""


def _joined(environment: gymnasium.Env[Any, Any]) -> _Joined | None:
    while isinstance(environment, gymnasium.Wrapper):
        if isinstance(environment, _Joined):
            return environment
        environment = environment.env
    return None


def _parts(environment: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """The parts that `single` has joined to a vector."""
    while isinstance(environment, gymnasium.Wrapper):
        if isinstance(environment, gymnasium.wrappers.FlattenObservation):
            return parts_of(environment.env.observation_space)
        environment = environment.env
    return ()


def _creator(registered: EnvSpec) -> Callable[..., Any]:
    entry_point = registered.entry_point
    return load_env_creator(entry_point) if isinstance(entry_point, str) else cast(Callable[..., Any], entry_point)


def _render_modes(registered: EnvSpec) -> Sequence[str]:
    modes: Sequence[str] = getattr(_creator(registered), "metadata", {}).get("render_modes", ("rgb_array",))
    return modes
