"""Determines whether other processes can create the environment that a program passes to `train`."""

import inspect
import re
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from actorq.errors import UserError
from actorq_apps.local.services import is_importable

if TYPE_CHECKING:
    from actor_service.embedded import OwnEnvironment

_WHAT = "an id such as CartPole-v1, MODULE:NAME, a class or function that makes a gymnasium.Env, or a gymnasium.Env"


def resolve(environment: Any) -> "str | OwnEnvironment":
    """The id with which every process can create the environment, or a wrapper for this process. Raises UserError."""
    if isinstance(environment, str):
        return environment
    if (importable := path_of(environment)) is not None:
        return importable
    # Imported here, because a run by id needs neither Gymnasium nor ONNX Runtime in this process.
    from actor_service.embedded import OwnEnvironment

    if not (callable(environment) or OwnEnvironment.is_environment(environment)):
        raise UserError(f"environment: expected {_WHAT}, got {type(environment).__name__}")
    return OwnEnvironment(_name_of(environment), environment)


def path_of(environment: Any) -> str | None:
    """MODULE:NAME of a class or function that a new Python process can import; None if there is none."""
    if not (inspect.isclass(environment) or inspect.isfunction(environment)):
        return None
    module, name = environment.__module__, environment.__qualname__
    try:
        found = attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None
    return f"{module}:{name}" if found is environment and module != "__main__" and is_importable(module) else None


def _name_of(environment: Any) -> str:
    named = (
        environment if hasattr(environment, "__qualname__") else type(getattr(environment, "unwrapped", environment))
    )
    name = re.sub(r"[^A-Za-z0-9_]+", "", named.__qualname__.rpartition(".")[2].replace("<lambda>", ""))
    return name or "environment"
