"""Commands as forks of a process that has imported their modules: hundreds of them start without these imports.

`ForkedCommand` is like `subprocess.Popen` with pipes of text. The process is as after exec: own descriptors, folder
and environment. It is no child of the tests. With `run_server` it would be one, and so would be all processes that a
killed run leaves. Learners, and runs with their learners, are forked from a process with PyTorch, commands and
services from processes without it.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from actorq.start import fast_imports
from actorq_apps.local.forkserver import become

_ROOT = Path(__file__).parents[2]
_REQUEST_BYTES = 256 * 1024
# What each of these processes imports.
LEARNING = ("actorq_apps.cli.train", "learner_service.process")
COMMANDS = (
    *(f"actorq_apps.cli.{name}" for name in ("certificates", "check", "cluster", "compare", "evaluate", "policies")),
    *(
        f"actorq_apps.cli.{name}"
        for name in ("profile", "reset_environment", "status", "sweep.command", "train", "verify")
    ),
    *("actorq_apps.operator.process", "scipy.stats"),
)
# ONNX Runtime is not here: its thread would not survive a fork.
SERVICES = (
    *("actor_service.process", "actor_service.environments.__main__", "actor_service.environments.gymnasium_backend"),
    *("actorq_apps.meter.__main__", "onnx"),
)


class ForkedCommand:
    """A running `python -m MODULE ARGUMENTS...`.

    one_output: its errors come on standard output.
    environment: its variables, by default those of the tests.
    lifeline: its standard input, by default a pipe.
    errors: its standard error, by default a pipe.
    modules: those of the process that forks it, by default what fits the command.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        one_output: bool = False,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        lifeline: int | None = None,
        errors: int | None = None,
        modules: tuple[str, ...] | None = None,
    ) -> None:
        self.arguments = arguments
        self.returncode: int | None = None
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr), (self._status, status) = (
            os.pipe() for _ in range(4)
        )
        if lifeline is not None:
            os.dup2(lifeline, stdin)
        if errors is not None:
            os.dup2(errors, stderr)
        self.stdin, self.stdout, self.stderr = os.fdopen(to_stdin, "w"), os.fdopen(from_stdout), os.fdopen(from_stderr)
        request = [module, arguments, str(cwd or Path.cwd()), dict(os.environ if environment is None else environment)]
        streams = (stdin, stdout, stdout if one_output else stderr)
        server = _server(modules or _modules_for(module, arguments))
        socket.send_fds(server, [json.dumps(request).encode()], (*streams, status))
        for descriptor in (stdin, stdout, stderr, status):
            os.close(descriptor)
        self.pid = int(server.recv(64))
        _running.add(self)

    def __enter__(self) -> "ForkedCommand":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            with suppress(BrokenPipeError):
                stream.close()
        self.wait(60)

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.arguments, timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(int(os.read(self._status, 64)))
            os.close(self._status)
            _running.discard(self)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still writes, after its end."""
        read: dict[IO[str], str] = {}
        readers = [
            threading.Thread(target=lambda stream=stream: read.update({stream: stream.read()}), daemon=True)
            for stream in (self.stdout, self.stderr)
        ]
        for reader in readers:
            reader.start()
        self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return read[self.stdout], read[self.stderr]

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


_running: set[ForkedCommand] = set()


def running() -> list[ForkedCommand]:
    """All that nobody has waited for."""
    return list(_running)


def close() -> None:
    """End the processes that fork."""
    while _servers:
        _servers.popitem()[1].close()


def run(module: str, *arguments: str, timeout: float, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `more` as for `ForkedCommand`."""
    command = ForkedCommand(module, *arguments, **more)
    out, err = command.communicate(timeout)
    return subprocess.CompletedProcess(arguments, command.wait(), out, err)


def _modules_for(module: str, arguments: Sequence[str]) -> tuple[str, ...]:
    started = arguments[0] if module == "actorq.start" else module
    if started.startswith(("learner_service", "benchmarks")) or arguments[:1] == ("train",):
        return LEARNING
    return COMMANDS if started.startswith("actorq_apps.") else SERVICES


_servers: dict[tuple[str, ...], socket.socket] = {}


def _server(modules: tuple[str, ...]) -> socket.socket:
    if found := _servers.get(modules):
        return found
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60.0)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
        # It forks and ends, so that the tests have no child that stays.
        subprocess.run(command, cwd=_ROOT, check=True, pass_fds=(theirs.fileno(),), start_new_session=True)
    return _servers.setdefault(modules, ours)


def _serve(control: socket.socket) -> None:
    """Fork for each request. Each fork has a parent that waits for it and tells how it ended, and that ends with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 4)
        if not message:
            return
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            *streams, status = descriptors
            if pid := os.fork():
                control.send(str(pid).encode())
                control.close()
                for descriptor in streams:
                    os.close(descriptor)
                os.write(status, str(os.waitpid(pid, 0)[1]).encode())
                os._exit(0)
            control.close()
            os.close(status)
            module, arguments, folder, environment = json.loads(message)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[0] = folder
            sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
            become(module, arguments, streams)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _main() -> None:
    if os.fork():
        return
    with fast_imports():
        for module in sys.argv[2:]:
            import_module(module)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        _serve(control)


if __name__ == "__main__":
    _main()
