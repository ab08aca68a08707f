"""Loads a user's classes (algorithms, networks) by dotted path, and locates errors in them."""

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from typing import NamedTuple

from actorq.errors import UserError
from actorq.text import reason_of

_LIBRARY = f"{sysconfig.get_path('stdlib')}{os.sep}"


class Place(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.removeprefix(os.path.join(os.getcwd(), ''))}:{self.line}"


def innermost(error: BaseException, ours: tuple[str, ...]) -> Place | None:
    """The innermost line of an error's traceback outside Python's library and the folders `ours`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.lineno and not is_library(frame.filename) and not frame.filename.startswith(ours):
            return Place(frame.filename, frame.lineno)
    return None


def is_library(file: str) -> bool:
    """Whether a traceback's file belongs to Python's library, or is not a file."""
    return file.startswith(("<", _LIBRARY)) and "site-packages" not in file


def load(path: str, setting: str) -> object:
    """Return the object at "MODULE:NAME". The module may be in the working directory.

    setting: the setting that holds the path, named in errors. Raises UserError when the object cannot be loaded.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UserError(f"{setting}: expected MODULE:NAME, got {path!r}")
    if os.getcwd() not in sys.path:
        # As with `python -m`, the user's module is in the working directory.
        sys.path.append(os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        # Importing a user's module may raise any exception.
        raise UserError(
            f"{setting}: {module_name} cannot be imported: {type(error).__name__}: {reason_of(error)}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{setting}: module {module_name} has no {name}")
        found = getattr(found, part)
    return found
