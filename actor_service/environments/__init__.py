"""Environments by id, stepped as one batch, with their spec for the learner.

Episodes reset at the step after they ended (next-step autoreset): that step's action is ignored, and its observation
is the first of the new episode. So the observation before it is the final one of the old episode, and a column of
observations holds everything once.

An id chooses a library, `--environment-backend` who steps it: `python` steps that library's own environments one after
the other, `envpool` has EnvPool's C++ threads step its versions of them. docs/how-to/environments.md tells more.

An installed package adds a library by an entry point of the group `actorq.environments`: FAMILY = MODULE:FUNCTION. The
function makes the environments FAMILY/NAME: it takes an id, their number, whether they are rendered, and the run's
environment_args as keyword arguments, and returns Environments.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, cast

from actor_service.environments.interface import Environments, Fault, Step
from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments
from actorq.domain.trajectory import EnvironmentSpec
from actorq.errors import UserError
from actorq.plugins import load
from actorq.text import one_line

__all__ = [
    "Backend",
    "Environments",
    "Fault",
    "Step",
    "check_modules",
    "describe_environment",
    "make_environments",
    "modules_of",
]

Backend = Literal["python", "envpool"]

_GYMNASIUM = "actor_service.environments.gymnasium_backend:make"
_FAMILIES = {
    "dm_control": "actor_service.environments.dm_control_backend:make",
    "ALE": "actor_service.environments.atari_backend:make",
}
_ENTRY_POINTS = "actorq.environments"
_MOST_BYTES = 500


def make_environments(
    environment_id: str,
    count: int,
    backend: Backend = "python",
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    *,
    rendered: bool = False,
) -> Environments:
    """`count` environments of one id, made with the same arguments.

    rendered: they can give pictures of themselves.

    Raises UserError when there is none of this id, its library is not installed, it does not take the arguments, its
    spaces are not supported, or it cannot be rendered here.
    """
    path = _maker(environment_id, backend)
    if arguments.wrappers and path != _GYMNASIUM:
        raise UserError(
            "environment_wrappers: only Gymnasium's environments take wrappers, with --environment-backend python, got "
            f"{environment_id!r} with {backend}"
        )
    module, _, function = path.partition(":")
    try:
        make = getattr(import_module(module), function)
        wrappers = [
            partial(cast(Callable[..., Any], load(name, "environment_wrappers")), **keywords)
            for name, keywords in arguments.wrappers
        ]
        made: Environments = make(
            environment_id, count, rendered, *([wrappers] if wrappers else ()), **arguments.keywords
        )
        made.spec = replace(made.spec, environment_arguments=arguments)
    except UserError:
        raise
    except Exception as error:
        # Anything may be raised by a user's module.
        raise _refusal(environment_id, arguments, error) from error
    return made


def describe_environment(
    environment_id: str,
    backend: Backend = "python",
    arguments: EnvironmentArguments = NO_ARGUMENTS,
    *,
    rendered: bool = False,
) -> EnvironmentSpec:
    """The spec of an environment; raises UserError as `make_environments` does.

    rendered: for who wants pictures later: whether this process can draw is decided with its first environment.
    """
    environments = make_environments(environment_id, 1, backend, arguments, rendered=rendered)
    environments.close()
    return environments.spec


def modules_of(environment_id: str, arguments: EnvironmentArguments = NO_ARGUMENTS) -> set[str]:
    """The modules that have to be imported to make an environment: MODULE of MODULE:NAME, and those of wrappers."""
    paths = (environment_id, *(path for path, _ in arguments.wrappers))
    return {module for path in paths if (module := path.rpartition(":")[0])}


def check_modules(environment_id: str, arguments: EnvironmentArguments, allowed: Collection[str]) -> None:
    """Raise UserError when an environment that a learner names needs a module that is not allowed here."""
    for module in sorted(modules_of(environment_id, arguments).difference(allowed)):
        raise UserError(
            f"environment {environment_id!r}: the learner names the module {module!r}, which this actor may not "
            f"import: give the actor --actor.allow-modules {module} if you trust the module"
        )


def _maker(environment_id: str, backend: Backend) -> str:
    """The MODULE:FUNCTION that makes the environment."""
    if backend == "envpool":
        return "actor_service.environments.envpool_backend:make"
    family, slash, _ = environment_id.partition("/")
    if not slash:
        return _GYMNASIUM
    installed = {point.name: point.value for point in entry_points(group=_ENTRY_POINTS)}
    return _FAMILIES.get(family) or installed.get(family) or _GYMNASIUM


def _refusal(environment_id: str, arguments: EnvironmentArguments, error: Exception) -> UserError:
    # What Gymnasium and the import of a module say of themselves needs no name.
    speaks = isinstance(error, ImportError) or type(error).__module__.startswith("gymnasium.")
    kind = "" if speaks else f"{type(error).__name__}: "
    text = one_line(" ".join(str(error).split()), _MOST_BYTES)
    remedy = "give the id of an installed environment, such as CartPole-v1"
    if isinstance(error, ImportError):
        remedy = f"install what it needs (docs/how-to/environments.md), or {remedy}"
    elif arguments != NO_ARGUMENTS:
        remedy = f"it was made with {one_line(str(arguments), _MOST_BYTES)}"
    return UserError(f"environment {environment_id!r} cannot be made: {kind}{text}; {remedy}")
