"""Gymnasium's environments: classic control, Box2D, MuJoCo, and whatever else is registered."""

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from actor_service.environments.loop import LoopedEnvironments
from actor_service.environments.rendering import draw_fast, prepare_mujoco, wants_mujoco
from actor_service.environments.spaces import action_spec, observation_spec
from actorq.domain.trajectory import EnvironmentSpec
from actorq.errors import UserError


def make(environment_id: str, count: int, rendered: bool) -> LoopedEnvironments:
    """A batch of a registered environment; raises UserError when there is none or its spaces are not supported."""
    registered = _registered(environment_id)
    if wants_mujoco(registered.entry_point):
        prepare_mujoco(rendered)

    def single() -> gymnasium.Env[Any, Any]:
        # The limit is kept by the batch, and neither order nor types of the calls need to be watched.
        environment = _make(
            environment_id,
            max_episode_steps=-1,
            disable_env_checker=True,
            **({"render_mode": "rgb_array"} if rendered else {}),
        )
        if rendered and wants_mujoco(registered.entry_point):
            draw_fast(environment.unwrapped.model)  # type: ignore[attr-defined]
        return environment

    if rendered and "rgb_array" not in _render_modes(registered):
        raise UserError(f"environment {environment_id}: it has no pictures (render mode rgb_array)")
    first = single()
    try:
        actions, discrete_actions = action_spec(environment_id, first.action_space)
        spec = EnvironmentSpec(
            environment_id=environment_id,
            observations=observation_spec(environment_id, first.observation_space),
            actions=actions,
            discrete_actions=discrete_actions,
            max_episode_steps=registered.max_episode_steps or 0,
            reward_threshold=None if registered.reward_threshold is None else float(registered.reward_threshold),
        )
    except UserError:
        first.close()
        raise
    singles = [first, *(single() for _ in range(count - 1))]
    return LoopedEnvironments(spec, singles, single, registered.max_episode_steps or 0)


def _render_modes(registered: gymnasium.envs.registration.EnvSpec) -> Sequence[str]:
    entry_point = registered.entry_point
    made_by = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    modes: Sequence[str] = getattr(made_by, "metadata", {}).get("render_modes", ("rgb_array",))
    return modes


def _registered(environment_id: str) -> gymnasium.envs.registration.EnvSpec:
    module, _, name = environment_id.rpartition(":")
    try:
        if module:
            __import__(module)
        return gymnasium.spec(name)
    except Exception as error:
        raise _refusal(environment_id, error) from error


def _make(environment_id: str, **how: Any) -> gymnasium.Env[Any, Any]:
    try:
        environment: gymnasium.Env[Any, Any] = gymnasium.make(environment_id, **how)
    except Exception as error:
        raise _refusal(environment_id, error) from error
    # The wrapper that watches the order of calls costs as much as a step of a small environment.
    if isinstance(environment, gymnasium.wrappers.OrderEnforcing):
        environment = environment.env
    return environment


def _refusal(environment_id: str, error: Exception) -> UserError:
    # Anything may be raised by a module of the user's; what Gymnasium says of itself needs no name.
    kind = "" if isinstance(error, gymnasium.error.Error | ImportError) else f"{type(error).__name__}: "
    return UserError(
        f"environment {environment_id!r} cannot be made: {kind}{' '.join(str(error).split())}; "
        "give the id of an installed environment, such as CartPole-v1"
    )
