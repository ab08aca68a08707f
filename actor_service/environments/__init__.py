"""Makes batches of environments by id, and describes them for the learner.

An environment resets at the step after an episode's end (next-step autoreset). That step ignores its action and returns
the first observation of the new episode. The observation before it is the final observation of the old episode.

The id selects a library. `--environment-backend` selects how environments are stepped. `python` steps the library's
environments one after the other. `envpool` steps EnvPool's versions of them on C++ threads. See
docs/how-to/environments.md.

An installed package adds a library with an entry point of the group `actorq.environments`: FAMILY = MODULE:FUNCTION.
The function makes environments with ids FAMILY/NAME. It takes the id, the number of environments, whether they are
rendered, and the run's environment_args as keyword arguments. It returns Environments.

The family `caller` has environments that only one process can make: the caller of `actorq.train`, which passed a
notebook's class, a function or an object.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import Distribution, distributions, entry_points
from typing import Any, Literal, cast

import gymnasium

from actor_service.environments.failures import FAILURES, failure_text, place_of
from actor_service.environments.interface import Environments, Fault, Step
from actor_service.environments.keywords import fitting_keywords
from actor_service.environments.spaces.critics import CriticParts
from actor_service.environments.spaces.observations import UnsupportedObservationsError
from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments, is_external, modules_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.plugins import load
from actorq.text import one_line

__all__ = [
    "CALLER",
    "Backend",
    "Environments",
    "Fault",
    "Step",
    "check_modules",
    "describe_environment",
    "make_environments",
]

Backend = Literal["python", "envpool"]
CALLER = "caller"
"""Family of environments that only one process can make, because only that process has the factory."""

_GYMNASIUM = "actor_service.environments.gymnasium_backend:make"
_OF_CALLER = "actor_service.environments.gymnasium_backend:make_by"
_AGENTS = "actor_service.environments.agents.backend:make"
_FAMILIES = {
    "pettingzoo": _AGENTS,
    "dm_control": "actor_service.environments.dm_control_backend:make",
    "dm_control_pixels": "actor_service.environments.pixels.dm_control:make",
    "ALE": "actor_service.environments.atari_backend:make",
}
_ENTRY_POINTS = "actorq.environments"
_FILTER = "gymnasium.wrappers:FilterObservation"
_FLATTEN = "gymnasium.wrappers:FlattenObservation"
_MOST_BYTES = 500
_LIBRARY = "gymnasium"
_MOST_FILE_BYTES = 1 << 20


def make_environments(
    environment_id: str,
    count: int,
    backend: Backend = "python",
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    *,
    rendered: bool = False,
    evaluated: bool = False,
    before_reset: Callable[[], None] = lambda: None,
    factory: Callable[..., Any] | None = None,
) -> Environments:
    """Make `count` environments of one id with the same arguments.

    rendered: whether `render` is needed.
    evaluated: whether only policies act in them, and no critic learns. Observations then lack the parts of
        `critic_leaves`, and the environments may lack them, too.
    before_reset: called before a reset that searches an action mask.
    factory: makes one environment of the family `caller`.

    Raises UserError when the id is unknown, its library is missing, the arguments do not fit, the spaces are not
    supported, or this machine cannot render it.
    """
    path = _maker(environment_id, backend)
    if path == _OF_CALLER and factory is None:
        raise UserError(
            f"environment {environment_id!r} exists only in the process that gave it to actorq.train: use the run's "
            "methods there, or move its class into a module and train MODULE:CLASS"
        )
    if arguments.wrappers and path not in (_GYMNASIUM, _OF_CALLER):
        raise UserError(
            "environment_wrappers: wrappers need a Gymnasium environment with --environment-backend python, got "
            f"{environment_id!r} with {backend}"
        )
    if arguments.critic_leaves and path not in (_GYMNASIUM, _OF_CALLER, _AGENTS):
        raise UserError(
            "critic_leaves: parts for critics need a Gymnasium or PettingZoo environment with --environment-backend "
            f"python, got {environment_id!r} with {backend}; leave --critic-leaves out"
        )
    module, _, function = path.partition(":")
    try:
        make = getattr(import_module(module), function)
        wrappers = [_wrapper(name, keywords) for name, keywords in arguments.wrappers]
        critics = CriticParts(arguments.critic_leaves, left_out=evaluated)
        ours: tuple[Any, ...] = ()
        if path == _AGENTS:
            ours = before_reset, critics, arguments
        elif path in (_GYMNASIUM, _OF_CALLER):
            ours = wrappers, before_reset, critics, arguments
        theirs = (factory,) if path == _OF_CALLER else ()
        made: Environments = make(*theirs, environment_id, count, rendered, *ours, **arguments.keywords)
        _check_agents(made, arguments)
        _check_planes(made)
        made.spec = replace(made.spec, environment_arguments=arguments)
    except UnsupportedObservationsError as error:
        raise UserError(f"{error}{_way_out(arguments, error)}") from None
    except UserError:
        raise
    except FAILURES as error:
        # A user's module may raise any exception.
        raise _refusal(environment_id, arguments, error) from error
    return made


def describe_environment(
    environment_id: str,
    backend: Backend = "python",
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    *,
    rendered: bool = False,
    evaluated: bool = False,
    factory: Callable[..., Any] | None = None,
) -> EnvironmentSpec:
    """The spec of an environment. Raises UserError as `make_environments` does.

    rendered: whether this process renders later. The first MuJoCo environment fixes how MuJoCo draws.
    evaluated: see `make_environments`.
    """
    environments = make_environments(
        environment_id, 1, backend, arguments, rendered=rendered, evaluated=evaluated, factory=factory
    )
    environments.close()
    return environments.spec


def check_modules(environment_id: str, arguments: EnvironmentArguments, allowed: Collection[str]) -> None:
    """Raise UserError when the learner's environment needs a module that this actor may not import."""
    for module in sorted(modules_of(environment_id, arguments).difference(allowed)):
        raise UserError(
            f"environment {environment_id!r}: this actor may not import the learner's module {module!r}; "
            f"give the actor --actor.allow-modules {module} if you trust the module"
        )


def _maker(environment_id: str, backend: Backend) -> str:
    """The MODULE:FUNCTION that makes the environment."""
    if is_external(environment_id):
        raise UserError(
            f"environment {environment_id!r} exists only in simulators that connect to an actor with --external, so "
            "this process cannot make it"
        )
    if environment_id.startswith(f"{CALLER}/"):
        if backend != "python":
            raise UserError(f"environment_backend: expected python for the caller's own environment, got {backend}")
        return _OF_CALLER
    if backend == "envpool":
        return "actor_service.environments.envpool_backend:make"
    family, slash, _ = environment_id.partition("/")
    if not slash:
        return _GYMNASIUM
    if family in _FAMILIES:
        return _FAMILIES[family]
    installed = {point.name: point.value for point in entry_points(group=_ENTRY_POINTS)}
    return installed.get(family, _GYMNASIUM)


def _check_planes(made: Environments) -> None:
    """Raise UserError if a family's observations are images whose shape networks do not treat as an image."""
    spec, single = made.spec, made.spec.observations
    if spec.frame_stack == 1 and len(single.shape) == 2 and single.dtype in ("uint8", "bool"):
        made.close()
        raise UserError(
            f"environment {spec.environment_id}: expected images [height, width, 1], or stacked frames, got "
            f"{single.dtype}{list(single.shape)}"
        )


def _check_agents(made: Environments, arguments: EnvironmentArguments) -> None:
    """Raise UserError for settings of several agents if there is only one."""
    asked = (("identity", arguments.agent_identity, "none"), ("critic", arguments.agent_critic, "own"))
    if arguments.agent_groups and not made.spec.agents:
        made.close()
        raise UserError(
            f"policies: expected an environment with several agents, got {made.spec.environment_id}, which has one; "
            "leave policies out"
        )
    for name, value, usual in asked if not made.spec.agents else ():
        if value != usual:
            made.close()
            raise UserError(
                f"agents.{name} {value}: expected an environment with several agents, got {made.spec.environment_id}, "
                f"which has one; leave agents.{name} out"
            )


def _wrapper(name: str, keywords: Mapping[str, Any]) -> Callable[..., Any]:
    wrap = cast(Callable[..., Any], load(name, "environment_wrappers"))
    return partial(wrap, **fitting_keywords(wrap, keywords))


def _way_out(arguments: EnvironmentArguments, error: UnsupportedObservationsError) -> str:
    """The part of an error that names a wrapper: one that flattens the observations, or those parts that can be
    flattened.
    """
    if not error.flattened:
        return ""
    chosen = ((_FILTER, {"filter_keys": error.keys}),) if error.keys else ()
    wrappers = (*arguments.wrappers, *chosen, (_FLATTEN, {}))
    texts = [json.dumps({name: keywords}) if keywords else name for name, keywords in wrappers]
    flag = one_line(", ".join(texts), _MOST_BYTES)
    of = f" of {', '.join(error.keys)}" if error.keys else ""
    numbers = f"{error.flattened:,} number{'s' * (error.flattened != 1)}"
    return f"; a vector of their {numbers}{of} works: --environment-wrappers '[{flag}]'"


def _refusal(environment_id: str, arguments: EnvironmentArguments, error: BaseException) -> UserError:
    text = f"environment {environment_id!r} cannot be made: {failure_text(error)}"
    remedy = "give the id of an installed environment, such as CartPole-v1"
    unregistered = isinstance(error, gymnasium.error.UnregisteredEnv)
    if unregistered and ":" not in environment_id and (module := _module_that_registers(environment_id)):
        remedy = f"give {module}:{environment_id}"
    if isinstance(error, ModuleNotFoundError) and place_of(error) is not None:
        text += f"; install the package of {error.name}, which the environment needs"
    elif isinstance(error, ImportError):
        text += f"; install its package, or {remedy}"
    elif unregistered:
        text += f"; {remedy}"
    elif arguments != NO_ARGUMENTS:
        text += f"; the arguments were {one_line(str(arguments), _MOST_BYTES)}"
    elif isinstance(error, gymnasium.error.Error) or environment_id.startswith(":"):
        text += f"; {remedy}"
    return UserError(text)


def _module_that_registers(environment_id: str) -> str | None:
    """The top-level module of an installed package whose source contains this id as a string; None if there is none."""
    quoted = [f"{quote}{environment_id}{quote}".encode() for quote in "\"'"]
    for distribution in distributions():
        uses_it = any(requirement.startswith(_LIBRARY) for requirement in distribution.requires or ())
        if uses_it and (module := _module_with(distribution, quoted)):
            return module
    return None


def _module_with(distribution: Distribution, texts: list[bytes]) -> str | None:
    for file in distribution.files or ():
        if file.suffix != ".py" or file.parts[0] == "..":
            continue
        try:
            with open(str(file.locate()), "rb") as stream:
                source = stream.read(_MOST_FILE_BYTES)
        except OSError:
            continue
        if any(text in source for text in texts):
            return file.parts[0].removesuffix(".py")
    return None
