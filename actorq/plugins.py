"""Objects by their dotted path, for what a user adds without touching this package."""

import importlib
import importlib.util
import os
import sys

from actorq.errors import UserError


def load(path: str, setting: str) -> object:
    """The object at "MODULE:NAME", the module looked for in the working directory too.

    setting: what the path was given for, to be named in errors. Raises UserError when there is none.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UserError(f"{setting}: expected MODULE:NAME, got {path!r}")
    if os.getcwd() not in sys.path:
        # As `python -m` does it: the user's module is where the command was given.
        sys.path.append(os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        # A user's module may raise anything while it is imported.
        text = " ".join(str(error).split())
        raise UserError(f"{setting}: {module_name} cannot be imported: {type(error).__name__}: {text}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{setting}: module {module_name} has no {name}")
        found = getattr(found, part)
    return found
