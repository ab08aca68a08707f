"""Arguments of `actorq.train` as settings, and flags in errors of the command as arguments."""

import re
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import ActorQError, UserError
from actorq_apps.python.environments import path_of

# A command, which keeps its flags, or a flag.
_COMMAND_OR_FLAG = re.compile(r"\bactorq [a-z]+[^:;,]*|--([a-z][\w.-]*\w)(:?)")


def as_tree(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as a tree of settings: `dqn__batch_size=64` becomes `{"dqn": {"batch_size": 64}}`."""
    tree: dict[str, Any] = {}
    for name, value in given.items():
        *sections, last = name.split("__")
        for section in reversed([*sections, last]):
            value = {section: value}
        tree = settings.merged(tree, settings.in_full(RunConfig, _plain(value)))
    return tree


def _plain(value: Any) -> Any:
    """The value in YAML's types: NumPy numbers become Python's; paths, data sets, classes and functions become text."""
    match value:
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case PathLike():
            return fspath(value)
        case _ if callable(value):
            if (path := path_of(value)) is None:
                raise UserError(f"expected a class or function of a module that Python can import, got {value!r}")
            return path
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def with_arguments(error: ActorQError) -> ActorQError:
    """An error of the command, for a caller in Python: `--target-return` becomes `target_return`."""
    return UserError(_COMMAND_OR_FLAG.sub(_argument, str(error))) if isinstance(error, UserError) else error


def _argument(found: re.Match[str]) -> str:
    flag, colon = found[1], found[2]
    if flag is None:
        return found[0]
    if flag == "resume" and not colon:
        return "resume=True"
    name = "directory" if flag == "run-directory" else flag.replace("-", "_").replace(".", "__")
    return name + colon
