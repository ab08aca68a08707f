"""Environments by id, stepped as one batch, with their spec for the learner.

Episodes reset at the step after they ended (next-step autoreset): that step's action is ignored, and its observation
is the first of the new episode. So the observation before it is the final one of the old episode, and a column of
observations holds everything once.

An id chooses a library, `--environment-backend` who steps it: `python` steps that library's own environments one after
the other, `envpool` has EnvPool's C++ threads step its versions of them. docs/how-to/environments.md tells more.
"""

from collections.abc import Collection
from importlib import import_module
from typing import Literal

from actor_service.environments.interface import Environments, Fault, Step
from actorq.domain.trajectory import EnvironmentSpec
from actorq.errors import UserError

__all__ = [
    "Backend",
    "Environments",
    "Fault",
    "Step",
    "check_module",
    "describe_environment",
    "make_environments",
    "module_of",
]

Backend = Literal["python", "envpool"]

_PREFIXES = {"dm_control/": "dm_control_backend", "ALE/": "atari_backend"}


def make_environments(
    environment_id: str, count: int, backend: Backend = "python", *, rendered: bool = False
) -> Environments:
    """`count` environments of one id.

    rendered: they can give pictures of themselves.

    Raises UserError when there is none of this id, its library is not installed, its spaces are not supported, or it
    cannot be rendered here.
    """
    name = _module(environment_id, backend)
    try:
        module = import_module(f"actor_service.environments.{name}")
    except ImportError as error:
        raise UserError(
            f"environment {environment_id!r} cannot be made: {error}; install what it needs "
            "(docs/how-to/environments.md), or give the id of an installed environment, such as CartPole-v1"
        ) from None
    environments: Environments = module.make(environment_id, count, rendered)
    return environments


def describe_environment(
    environment_id: str, backend: Backend = "python", *, rendered: bool = False
) -> EnvironmentSpec:
    """The spec of an environment; raises UserError as `make_environments` does.

    rendered: for who wants pictures later: whether this process can draw is decided with its first environment.
    """
    environments = make_environments(environment_id, 1, backend, rendered=rendered)
    environments.close()
    return environments.spec


def module_of(environment_id: str) -> str:
    """The module that has to be imported to make an environment, MODULE of MODULE:NAME; empty where there is none."""
    return environment_id.rpartition(":")[0]


def check_module(environment_id: str, allowed: Collection[str]) -> None:
    """Raise UserError when an environment that a learner names needs a module that is not allowed here."""
    module = module_of(environment_id)
    if module and module not in allowed:
        raise UserError(
            f"environment {environment_id!r}: the learner names the module {module!r}, which this actor may not "
            f"import: give the actor --actor.allow-modules {module} if you trust the module"
        )


def _module(environment_id: str, backend: Backend) -> str:
    if backend == "envpool":
        return "envpool_backend"
    for prefix, name in _PREFIXES.items():
        if environment_id.startswith(prefix):
            return name
    return "gymnasium_backend"
