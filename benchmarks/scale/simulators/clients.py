"""The clients of examples/simulator: how to build each one, and how to start it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.runs import with_project
from benchmarks.scale.simulators.cart_pole import EXAMPLE

PYTHON, CPP, NODE = "Python", "C++", "Node.js"
_END_S = 30.0


@dataclass(frozen=True)
class Client:
    """A client that can start. command: before the address and the number of environments."""

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def playing(self, address: str, environments: int) -> Iterator["subprocess.Popen[str]"]:
        """Run the client. It connects again until the address serves, and is killed at the end."""
        process = subprocess.Popen(
            [*self.command, address, str(environments)],
            env={**os.environ, **self.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def ended(client: Client, process: "subprocess.Popen[str]") -> None:
    """Wait for the client after the end of its run. Raises SystemExit unless it ends as its documentation says."""
    output, _ = process.communicate(timeout=_END_S)
    if (process.returncode, output) != (0, "the run is over\n"):
        raise SystemExit(f"the client in {client.name} ended with {process.returncode}: {output.strip()}")


def built(names: list[str], folder: Path) -> list[Client]:
    """The clients with these names, built in a folder. A client that cannot be built here is left out, with a line."""
    found = []
    for name in names:
        made = BUILDERS[name](folder)
        if isinstance(made, Client):
            found.append(made)
        else:
            print(f"{name}: left out, because {made}", flush=True)
    return found


def _python(folder: Path) -> Client:
    return Client(PYTHON, (sys.executable, str(EXAMPLE / "cart_pole.py")), with_project())


def _cpp(folder: Path) -> Client | str:
    build = folder / "cpp"
    missing = [name for name in ("make", "g++", "pkg-config", "protoc", "grpc_cpp_plugin") if not shutil.which(name)]
    if missing:
        return f"this machine has no {', '.join(missing)}"
    if fault := _failed(["make", "-C", str(EXAMPLE), "cart_pole", f"BUILD={build.resolve()}"], folder):
        return f"make failed: {fault}"
    return Client(CPP, (str(build.resolve() / "cart_pole"),))


def _node(folder: Path) -> Client | str:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "this machine has no node and npm"
    own = folder / "node"
    own.mkdir(parents=True, exist_ok=True)
    for name in ("cart_pole.js", "package.json"):
        shutil.copy(EXAMPLE / name, own)
    if not (own / "node_modules").exists() and (fault := _failed([npm, "install", "--silent"], own)):
        return f"npm install failed: {fault}"
    return Client(NODE, (node, str(own.resolve() / "cart_pole.js")), {"PROTOS": str(EXAMPLE.parents[1] / "protos")})


def _failed(command: list[str], folder: Path) -> str:
    """Run a command. Returns the last line of its errors; "" if it succeeds."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


BUILDERS: Mapping[str, Callable[[Path], Client | str]] = {PYTHON: _python, CPP: _cpp, NODE: _node}
"""For each client the function that builds it. It returns text if the client cannot be built."""
