"""Gymnasium's environments: classic control, Box2D, MuJoCo, and the user's own."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from actor_service.environments.agents.backend import make_found
from actor_service.environments.agents.recognized import AgentsFound, has_agents
from actor_service.environments.failures import kind_of
from actor_service.environments.interface import Environments
from actor_service.environments.keywords import fitting_keywords
from actor_service.environments.loop import LoopedEnvironments
from actor_service.environments.mujoco_setup import draw_fast, log_mujoco_warnings, prepare_mujoco, wants_mujoco
from actor_service.environments.spaces.actions import JointActions, sizes_of, with_one_action
from actor_service.environments.spaces.critics import NO_PARTS, CriticParts
from actor_service.environments.spaces.described import JoinedObservations, spec_of, with_one_observation, wrapper_of
from actor_service.environments.spaces.packing import mask_source
from actor_service.goals.rewards import GoalRewards
from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments
from actorq.errors import UserError

Environment = gymnasium.Env[Any, Any]
Wrap = Callable[[Environment], Environment]
Factory = Callable[..., Environment]
"""Makes an environment from keyword arguments: a class or a function."""


@dataclass(frozen=True)
class _Origin:
    """How to make an environment, and its properties that are known before.

    make: has the keyword arguments and the step limit that the environment itself must enforce, or -1 for none.
    creator: the class or function, whose signature and metadata are read. This lookup may import its module.
    mujoco: whether MuJoCo draws it.
    max_episode_steps: the registered step limit; None if only the environment knows.
    reward_threshold: the registered return of a solved task.
    """

    make: Callable[..., Environment]
    creator: Callable[[], Factory]
    mujoco: bool = False
    max_episode_steps: int | None = None
    reward_threshold: float | None = None


def make(
    environment_id: str,
    count: int,
    rendered: bool,
    wrappers: Sequence[Wrap] = (),
    before_reset: Callable[[], None] = lambda: None,
    critics: CriticParts = NO_PARTS,
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    /,
    **keywords: Any,
) -> Environments:
    """A batch of the environment ID, MODULE:ID or MODULE:NAME, as `make_environments` makes it.

    ID is registered in Gymnasium, after the import of the module. NAME is a class or function of the module.

    Raises UserError for unsupported spaces.
    """
    module, _, name = environment_id.rpartition(":")
    if module:
        __import__(module)
    own = None if name in gymnasium.registry or not module else _attribute(sys.modules[module], name)
    if own is not None:
        return make_by(own, environment_id, count, rendered, wrappers, before_reset, critics, arguments, **keywords)
    origin = _of_registry(environment_id, gymnasium.spec(name))
    return _make(origin, environment_id, count, rendered, wrappers, before_reset, critics, **keywords)


def make_by(
    factory: Factory,
    environment_id: str,
    count: int,
    rendered: bool,
    wrappers: Sequence[Wrap] = (),
    before_reset: Callable[[], None] = lambda: None,
    critics: CriticParts = NO_PARTS,
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    /,
    **keywords: Any,
) -> Environments:
    """A batch of environments that `factory` makes. The id is only a name. Otherwise as `make`.

    They may have several agents. arguments: what the agents and their critics see.
    """
    try:
        return _make(_of_factory(factory), environment_id, count, rendered, wrappers, before_reset, critics, **keywords)
    except AgentsFound as found:
        if wrappers:
            raise UserError(
                f"environment_wrappers: wrappers need a Gymnasium environment, got {environment_id!r} with several "
                "agents"
            ) from None
        limit = keywords.get("max_episode_steps")
        return make_found(found, environment_id, count, before_reset, critics, arguments, limit)


def _of_registry(environment_id: str, registered: EnvSpec) -> _Origin:
    def made(limit: int, **keywords: Any) -> Environment:
        # The loop's calls need no checker.
        environment: Environment = gymnasium.make(
            environment_id, max_episode_steps=limit, disable_env_checker=True, **keywords
        )
        # This wrapper checks the order of calls. The check costs as much as a step of a small environment.
        return environment.env if isinstance(environment, gymnasium.wrappers.OrderEnforcing) else environment

    def creator() -> Factory:
        entry_point = registered.entry_point
        return cast(Factory, load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point)

    threshold = None if registered.reward_threshold is None else float(registered.reward_threshold)
    return _Origin(made, creator, wants_mujoco(registered.entry_point), registered.max_episode_steps or 0, threshold)


def _of_factory(factory: Factory) -> _Origin:
    def made(limit: int, **keywords: Any) -> Environment:
        environment = factory(**keywords)
        if has_agents(environment):
            raise AgentsFound(environment, partial(factory, **keywords))
        if not isinstance(environment, gymnasium.Env):
            raise UserError(f"expected an environment of gymnasium.Env, got {kind_of(environment)}")
        return gymnasium.wrappers.TimeLimit(environment, limit) if limit > 0 else environment

    return _Origin(made, lambda: factory)


def _attribute(module: Any, name: str) -> Factory | None:
    """A class or function of a module, by its name; None if there is none."""
    try:
        found = attrgetter(name)(module)
    except AttributeError:
        return None
    return cast(Factory, found) if callable(found) else None


def _make(
    origin: _Origin,
    environment_id: str,
    count: int,
    rendered: bool,
    wrappers: Sequence[Wrap],
    before_reset: Callable[[], None],
    critics: CriticParts,
    *,
    max_episode_steps: int | None = None,
    **keywords: Any,
) -> LoopedEnvironments:
    limit = origin.max_episode_steps if max_episode_steps is None else max_episode_steps
    if limit is not None and (not isinstance(limit, int) or not (limit or max_episode_steps is None) or limit >= 2**32):
        raise UserError(f"environment_args: max_episode_steps must be a whole number from 1 to 2^32 - 1, got {limit!r}")
    # A step limit of the batch costs less than a limit in each environment, but a wrapper may need its own limit.
    make_one = _single(origin, environment_id, rendered, wrappers, (wrappers and limit) or -1, keywords)
    first = make_one()
    known = first.spec
    of_batch = 0 if wrappers else limit or 0
    if known is not None and (limit is None or wrappers):
        limit = known.max_episode_steps
    threshold = origin.reward_threshold
    if threshold is None and known is not None and known.reward_threshold is not None:
        threshold = float(known.reward_threshold)
    joint = wrapper_of(first, JointActions)
    sizes = joint.sizes if joint else sizes_of(first.action_space)
    source = mask_source(first, sizes, before_reset)
    combined = joint is None or joint.combined
    observed = partial(with_one_observation, mask=source, sizes=sizes, combined=combined, critics=critics)
    try:
        first = observed(first)
    except UserError as error:
        first.close()
        raise UserError(f"environment {environment_id}: {error}") from None
    try:
        spec = spec_of(environment_id, first, joint, limit or 0, threshold)
    except UserError:
        first.close()
        raise
    singles = [first, *(observed(make_one()) for _ in range(count - 1))]
    looped = LoopedEnvironments(spec, singles, lambda: observed(make_one()), of_batch)
    if spec.goal is not None and (joined := wrapper_of(first, JoinedObservations)) is not None:
        looped.goal_rewards = GoalRewards(environment_id, joined.env)
    return looped


def _single(
    origin: _Origin,
    environment_id: str,
    rendered: bool,
    wrappers: Sequence[Wrap],
    limit: int,
    keywords: dict[str, Any],
) -> Callable[[], Environment]:
    """Make one environment, with the user's wrappers and with actions of one array.

    Raises UserError when it cannot be rendered.
    """
    if any(isinstance(value, list | dict) for value in keywords.values()):
        keywords = fitting_keywords(origin.creator(), keywords)
    if rendered:
        keywords["render_mode"] = "rgb_array"
    if origin.mujoco:
        prepare_mujoco(keywords.get("render_mode") is not None)
        # Imports MuJoCo, which may already warn about the first model.
        origin.creator()
    if rendered and "rgb_array" not in getattr(origin.creator(), "metadata", {}).get("render_modes", ("rgb_array",)):
        raise UserError(f"environment {environment_id}: it cannot render pictures (no render mode rgb_array)")

    def made() -> Environment:
        log_mujoco_warnings()
        environment = origin.make(limit, **keywords)
        for wrap in wrappers:
            environment = wrap(environment)
        environment = with_one_action(environment)
        if rendered and origin.mujoco:
            draw_fast(environment.unwrapped.model)  # type: ignore[attr-defined]
        return environment

    return made
