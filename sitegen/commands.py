"""The reference of the command line: the help of each command, as the terminal shows it."""

import os
import re
import sys
from functools import cache
from importlib import import_module
from textwrap import wrap
from typing import Any

from actorq_apps.cli.main import main

_COMMAND = re.compile(r"^  ([a-z][a-z-]*) .*$", re.MULTILINE)
_COLUMNS = 100
_WRAPPED: dict[str, Any] = {"drop_whitespace": False, "break_long_words": False, "break_on_hyphens": False}


def commands() -> str:
    """A section for each command, and one for each command of `actorq cluster`."""
    top = help_of()
    found = [[name] for name in _COMMAND.findall(top)]
    cluster = found.index(["cluster"]) + 1
    found[cluster:cluster] = [["cluster", name] for name in _COMMAND.findall(help_of("cluster"))]
    return "\n\n".join([_block(top), *(f"## actorq {' '.join(each)}\n\n{_block(help_of(*each))}" for each in found)])


def _block(text: str) -> str:
    """The text as a block. A terminal wraps long lines itself, but a page would scroll sideways."""
    lines = [part for line in text.strip().splitlines() for part in wrap(line, _COLUMNS, **_WRAPPED) or [""]]
    return "\n".join(["```text", *lines, "```"])


@cache
def help_of(*command: str, flag: str = "--help") -> str:
    """The help of a command, from a fork. Some commands replace their process, and a fork has all imports."""
    if command[:1] == ("cluster",):
        # Once for all forks, because it imports the client of Kubernetes.
        import_module("actorq_apps.cli.cluster")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.environ["COLUMNS"] = str(_COLUMNS)
        sys.stdout = os.fdopen(1, "w")
        try:
            main([*command, flag])
        except SystemExit:
            pass
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as printed:
        text = printed.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"actorq {' '.join(command)} {flag} printed nothing")
    return text
