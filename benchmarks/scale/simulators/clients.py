"""The clients of examples/simulator: how to build each one, and how to start it."""

import os
import re
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
# Lines of npm when it cannot reach the registry of packages.
_UNREACHABLE = re.compile(
    r"code (EAI_AGAIN|ECONN|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|ETIMEDOUT|ERR_SOCKET_TIMEOUT|E50[234])"
)


@dataclass(frozen=True)
class Client:
    """A client that can start.

    command: without the address and the number of environments. variables: added to those of this process.
    """

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def playing(self, address: str = "", environments: int = 8) -> Iterator["subprocess.Popen[str]"]:
        """Run the client. It connects again until the address serves, and is killed at the end.

        address: "" for the one in the variable ACTOR_ADDRESS.
        """
        process = subprocess.Popen(
            [*self.command, *([address, str(environments)] if address else [])],
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


def cpp_client(folder: Path, *settings: str) -> Client | str:
    """Compile the client in C++. Returns text if this machine lacks something. Raises SystemExit for other failures.

    settings: of make, such as CXXFLAGS=-O0.
    """
    build = (folder / "cpp").resolve()
    missing = [name for name in ("make", "g++", "pkg-config", "protoc", "grpc_cpp_plugin") if not shutil.which(name)]
    if missing:
        return f"this machine has no {', '.join(missing)}"
    if _errors(["pkg-config", "--exists", "grpc++", "protobuf"], folder):
        return "this machine has no libgrpc++-dev and libprotobuf-dev"
    if errors := _errors(["make", "-C", str(EXAMPLE), "cart_pole", f"BUILD={build}", *settings], folder):
        raise SystemExit(f"make failed: {errors}")
    return Client(CPP, (str(build / "cart_pole"),))


def node_client(folder: Path) -> Client | str:
    """Install the client in JavaScript. Returns text if this machine lacks node, or cannot reach the registry of
    packages. Raises SystemExit for other failures.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "this machine has no node and npm"
    own = (folder / "node").resolve()
    own.mkdir(parents=True, exist_ok=True)
    for name in ("cart_pole.js", "package.json", "package-lock.json"):
        shutil.copy(EXAMPLE / name, own)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1")
    if errors := _errors([npm, "ci", *quiet], own):
        if _UNREACHABLE.search(errors):
            return "npm cannot reach the registry of packages"
        raise SystemExit(f"npm ci failed: {errors}")
    return Client(NODE, (node, str(own / "cart_pole.js")), {"PROTOS": str(EXAMPLE.parents[1] / "protos")})


def _errors(command: list[str], folder: Path) -> str:
    """Run a command. Returns its errors; "" if it succeeds."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


BUILDERS: Mapping[str, Callable[[Path], Client | str]] = {PYTHON: _python, CPP: cpp_client, NODE: node_client}
"""For each client the function that builds it. It returns text if this machine cannot build the client."""
