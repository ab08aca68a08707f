"""Starts services as forks of processes that have already imported their modules.

`actorq train` starts the fork servers before it imports its own modules. So the imports of launcher, learner and the
other services overlap, and shared modules are imported once. This module needs the standard library only.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from actorq import ENVIRONMENT_PREFIX
from actorq.start import fast_imports

_LEARNER = "learner_service"
# Modules that the services of a run import. ONNX Runtime is not here: its thread would not survive a fork.
_SHARED = (
    *("actorq.client", "actorq.process", "actorq.watchdog", "actorq.telemetry.energy.__main__"),
    *("actor_service.environments.__main__", "actor_service.environments.gymnasium_backend"),
)
_FORKED = ("actor_service", "actor_service.environments", "quantizer_service", "actorq.telemetry.energy")
_COMMAND_NAME = Path("/proc/self/comm")
_REQUEST_BYTES = 64 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_MOST_DESCRIPTORS = 16
# Seconds to wait for a fork, including the imports of its server.
_PATIENCE_S = 20.0


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without this project's settings.

    The resolved configuration already contains them. In a child they would override its flags.
    """
    return {name: value for name, value in environment.items() if not name.startswith(ENVIRONMENT_PREFIX)}


class ForkedProcess:
    """A fork that the launcher has adopted, with the methods of `subprocess.Popen` that callers use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """The exit code, or minus the signal that killed the process. Only one thread may call this."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


class _Server:
    """A process that imports `modules` and then waits for commands. It ends when this end of its socket closes.

    once: the server itself becomes the first command, instead of forking.
    """

    def __init__(self, modules: Sequence[str], once: bool) -> None:
        self._once = once
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_PATIENCE_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), "once" if once else "forks", *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=child_environment(os.environ),
                pass_fds=(theirs.fileno(),),
            )

    def start(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int]
    ) -> "ForkedProcess | subprocess.Popen[bytes] | None":
        """Run a module; None if the server cannot. Waits for the imports of a server that forks."""
        request = json.dumps({"module": module, "arguments": list(arguments)}).encode()
        if self._control.fileno() < 0 or len(request) > _REQUEST_BYTES or len(descriptors) > _MOST_DESCRIPTORS:
            return None
        try:
            socket.send_fds(self._control, [request], list(descriptors))
            if self._once:
                self._control.close()
                return self._process
            answer = self._control.recv(64)
        except OSError:
            answer = b""
        if not answer:
            # The server has ended, or it is late and must not fork the service that the caller now starts itself.
            self.close()
        return ForkedProcess(int(answer)) if answer else None

    def close(self) -> None:
        """End the server. Processes that it has become or forked live on."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class ForkServers:
    """The servers of a run: one becomes the learner, the other forks the other services."""

    learner: _Server
    others: _Server

    def start(
        self, command: Sequence[str], descriptors: Sequence[int]
    ) -> "ForkedProcess | subprocess.Popen[bytes] | None":
        """Run `PYTHON -m MODULE ARGUMENTS...` in its own session; None if no server can.

        descriptors: standard input, output and error, then others that the process keeps open.
        """
        executable, flag, module, *arguments = (*command, "", "", "")[: max(3, len(command))]
        if executable != sys.executable or flag != "-m":
            return None
        if module == _LEARNER:
            return self.learner.start(module, arguments, descriptors)
        return self.others.start(module, arguments, descriptors) if module in _FORKED else None

    def close(self) -> None:
        """End the servers. The started processes live on."""
        self.learner.close()
        self.others.close()


@contextmanager
def fork_servers() -> Iterator[ForkServers | None]:
    """Servers that begin their imports at once; None if the launcher cannot adopt forks on this system."""
    if not _adopt_orphans(True):
        yield None
        return
    servers = ForkServers(_Server((f"{_LEARNER}.process",), once=True), _Server(_SHARED, once=False))
    try:
        yield servers
    finally:
        servers.close()
        _adopt_orphans(False)


def _adopt_orphans(adopt: bool) -> bool:
    """Become the parent of orphans, such as a server's forks. Returns whether the system supports that."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0)


@dataclass(frozen=True)
class _Request:
    module: str
    arguments: list[str]
    descriptors: list[int]


def _serve(control: socket.socket, once: bool) -> _Request | None:
    """Fork for each request. Returns the request in the process that runs it, None when there are no more."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, _MOST_DESCRIPTORS)
        if not message:
            return None
        request = _Request(**json.loads(message), descriptors=list(descriptors))
        if once or not (pid := _fork()):
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(pid).encode())


def _fork() -> int:
    """Fork a process that the launcher adopts. Returns its pid here and 0 in the new process."""
    reading, writing = os.pipe()
    between = os.fork()
    if not between:
        if pid := os.fork():
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(reading)
        os.close(writing)
        os.setsid()
        return 0
    os.close(writing)
    os.waitpid(between, 0)
    with os.fdopen(reading) as answer:
        return int(answer.read())


def _run(request: _Request) -> None:
    """Become the requested module."""
    for number, descriptor in enumerate(request.descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if numpy := sys.modules.get("numpy"):
        # Forks inherit the server's generator. Without this they would all draw the same numbers.
        numpy.random.seed()
    with suppress(OSError):
        # The command line is the server's. This sets the name in tools such as ps and top.
        name = request.arguments[request.arguments.index("--name") + 1] if "--name" in request.arguments else ""
        _COMMAND_NAME.write_text(name or request.module, encoding="utf-8")
    sys.argv = [request.module, *request.arguments]
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _main() -> None:
    descriptor, kind, *modules = sys.argv[1:]
    with fast_imports():
        for module in modules:
            # The service that needs a missing module reports it.
            with suppress(ImportError):
                import_module(module)
    if kind != "once":
        from actorq.telemetry.process_stats import FORK_SERVER

        _COMMAND_NAME.write_text(FORK_SERVER, encoding="utf-8")
    with socket.socket(fileno=int(descriptor)) as control:
        request = _serve(control, kind == "once")
    if request is not None:
        _run(request)


if __name__ == "__main__":
    _main()
