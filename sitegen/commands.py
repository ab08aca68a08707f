"""The reference of the command line: the help of each command, as the terminal shows it."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

_COMMAND = re.compile(r"^  ([a-z][a-z-]*) .*$", re.MULTILINE)


def commands() -> str:
    """A section for each command, and one for each command of `actorq cluster`."""
    top = _help()
    found = [[name] for name in _COMMAND.findall(top)]
    cluster = found.index(["cluster"]) + 1
    found[cluster:cluster] = [["cluster", name] for name in _COMMAND.findall(_help("cluster"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(lambda command: _help(*command), found))
    sections = [f"## actorq {' '.join(command)}\n\n{_block(text)}" for command, text in zip(found, texts, strict=True)]
    return "\n\n".join([_block(top), *sections])


def _block(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def _help(*command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTORQ_")}
    return subprocess.run(
        [sys.executable, "-m", "actorq.cli.main", *command, "--help"],
        env={**environment, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
