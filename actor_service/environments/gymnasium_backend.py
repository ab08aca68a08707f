"""Gymnasium's registered environments: classic control, Box2D, MuJoCo, and the user's own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from actor_service.environments.keywords import fitting_keywords
from actor_service.environments.loop import LoopedEnvironments
from actor_service.environments.rendering import draw_fast, prepare_mujoco, wants_mujoco
from actor_service.environments.spaces.actions import JointActions, action_spec, sizes_of, with_one_action
from actor_service.environments.spaces.observations import (
    indicators_of,
    is_plane,
    leaves_of,
    observation_spec,
    parts_of,
)
from actor_service.environments.spaces.packing import PackedObservations, Source, mask_source, needs_packing
from actor_service.goals.rewards import GoalRewards, goal_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError

W = TypeVar("W")
Wrap = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]


def make(
    environment_id: str,
    count: int,
    rendered: bool,
    wrappers: Sequence[Wrap] = (),
    before_reset: Callable[[], None] = lambda: None,
    /,
    *,
    max_episode_steps: int | None = None,
    **keywords: Any,
) -> LoopedEnvironments:
    """A batch of a registered environment, as `make_environments` makes it. Raises UserError for unsupported spaces."""
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

    def made() -> gymnasium.Env[Any, Any]:
        # The batch enforces the step limit, unless a wrapper may need it. The loop's calls need no checker.
        environment: gymnasium.Env[Any, Any] = gymnasium.make(
            environment_id, max_episode_steps=(wrappers and limit) or -1, disable_env_checker=True, **keywords
        )
        # This wrapper's check of the order of calls costs as much as a step of a small environment.
        if isinstance(environment, gymnasium.wrappers.OrderEnforcing):
            environment = environment.env
        for wrap in wrappers:
            environment = wrap(environment)
        environment = with_one_action(environment)
        if rendered and wants_mujoco(registered.entry_point):
            draw_fast(environment.unwrapped.model)  # type: ignore[attr-defined]
        return environment

    if rendered and "rgb_array" not in _render_modes(registered):
        raise UserError(f"environment {environment_id}: it cannot render pictures (no render mode rgb_array)")
    first = made()
    joint = _wrapper(first, JointActions)
    sizes = joint.sizes if joint else sizes_of(first.action_space)
    source = mask_source(first, sizes, before_reset)

    def observed(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return _with_one_observation(environment, source, sizes, joint is None or joint.combined)

    try:
        first = observed(first)
    except UserError as error:
        first.close()
        raise UserError(f"environment {environment_id}: {error}") from None
    if wrappers:
        limit = (first.spec and first.spec.max_episode_steps) or 0
    try:
        actions, sizes = action_spec(
            environment_id, first.action_space, joint.sizes if joint and not joint.combined else ()
        )
        packed = _wrapper(first, PackedObservations)
        parts, indicators = (packed.parts, packed.indicators) if packed else _flattened(first)
        spec = EnvironmentSpec(
            environment_id=environment_id,
            observations=replace(
                observation_spec(environment_id, first.observation_space), leaves=packed.leaves if packed else ()
            ),
            actions=actions,
            sizes=sizes,
            max_episode_steps=limit,
            goal=None if (joined := _wrapper(first, _Joined)) is None else goal_of(environment_id, joined.env),
            parts=parts,
            indicators=indicators,
            action_parts=joint.text if joint else "",
            reward_threshold=None if registered.reward_threshold is None else float(registered.reward_threshold),
        )
    except UserError:
        first.close()
        raise
    singles = [first, *(observed(made()) for _ in range(count - 1))]
    looped = LoopedEnvironments(spec, singles, lambda: observed(made()), 0 if wrappers else limit)
    if joined is not None and spec.goal is not None:
        looped.goal_rewards = GoalRewards(environment_id, joined.env)
    return looped


class _Joined(gymnasium.wrappers.FlattenObservation):
    """An environment whose observations this module has joined."""


def _with_one_observation(
    environment: gymnasium.Env[Any, Any], mask: Source, sizes: Sequence[int], combined: bool
) -> gymnasium.Env[Any, Any]:
    """The environment with observations of one array, where they can be joined or packed to that."""
    space = environment.observation_space
    if needs_packing(space, mask):
        return PackedObservations(environment, mask, sizes, combined)
    if is_plane(space):
        return gymnasium.wrappers.ReshapeObservation(environment, (*(space.shape or ()), 1))
    if parts_of(space):
        return _Joined(environment)
    return environment


def _wrapper(environment: gymnasium.Env[Any, Any], kind: type[W]) -> W | None:
    """The wrapper of this kind; None if there is none."""
    while isinstance(environment, gymnasium.Wrapper):
        if isinstance(environment, kind):
            return environment
        environment = environment.env
    return None


def _flattened(environment: gymnasium.Env[Any, Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The parts of flattened observations in words, and which components are bits or one-hot categories."""
    flattened = _wrapper(environment, gymnasium.wrappers.FlattenObservation)
    if flattened is None:
        return (), ()
    space = flattened.env.observation_space
    return parts_of(space), indicators_of(leaf for _, leaf in leaves_of(space))


def _creator(registered: EnvSpec) -> Callable[..., Any]:
    entry_point = registered.entry_point
    return load_env_creator(entry_point) if isinstance(entry_point, str) else cast(Callable[..., Any], entry_point)


def _render_modes(registered: EnvSpec) -> Sequence[str]:
    modes: Sequence[str] = getattr(_creator(registered), "metadata", {}).get("render_modes", ("rgb_array",))
    return modes
