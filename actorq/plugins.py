"""Loads a user's own classes (algorithms, networks) by their dotted path."""

import importlib
import importlib.util
import os
import sys

from actorq.errors import UserError
from actorq.text import reason_of


def load(path: str, setting: str) -> object:
    """Return the object at "MODULE:NAME". The module may lie in the working directory.

    setting: the setting that holds the path, named in errors. Raises UserError when the object cannot be loaded.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UserError(f"{setting}: expected MODULE:NAME, got {path!r}")
    if os.getcwd() not in sys.path:
        # As with `python -m`: the user's module lies where the command was given.
        sys.path.append(os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        # A user's module may raise anything while it is imported.
        raise UserError(
            f"{setting}: {module_name} cannot be imported: {type(error).__name__}: {reason_of(error)}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{setting}: module {module_name} has no {name}")
        found = getattr(found, part)
    return found
