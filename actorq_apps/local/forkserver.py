"""Starts services and runs quickly: forks of processes that have already imported the modules.

`actorq train` starts the fork servers before it imports its own modules. The imports of launcher, learner and other
services therefore overlap, and shared modules are imported once. Commands that start many runs fork their launchers
and the learners, so the modules are imported once for all runs. This module needs only the standard library.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from actorq import ENVIRONMENT_PREFIX
from actorq.start import fast_imports

_LEARNER = "learner_service"
_LEARNER_MODULES = (f"{_LEARNER}.process",)
_COMMAND = "actorq_apps.cli.main"
_START = "actorq.start"
# Modules that the services of a run import. ONNX Runtime is missing: its thread would not survive a fork.
_SHARED = (
    *("actorq.client", "actorq.process", "actorq.watchdog", "actorq_apps.meter.__main__"),
    *("actor_service.environments.__main__", "actor_service.environments.gymnasium_backend"),
)
_FORKED = ("actor_service", "actor_service.environments", "quantizer_service", "actorq_apps.meter")
_COMMAND_NAME = Path("/proc/self/comm")
_REQUEST_BYTES = 64 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_MOST_DESCRIPTORS = 16
# Seconds to wait for a fork, including the imports of its server.
_PATIENCE_S = 20.0


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without this project's settings.

    The resolved configuration already contains them. In a child, they would override the child's flags.
    """
    return {name: value for name, value in environment.items() if not name.startswith(ENVIRONMENT_PREFIX)}


class ForkedProcess:
    """A fork that the launcher has adopted, with the used methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """The exit code, or minus the signal that killed the process. Only one thread may call this."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.terminate(signal.SIGKILL)


Process = ForkedProcess | subprocess.Popen[bytes]


class _Server:
    """A process that imports `modules` and then waits for commands. It ends when this end of its socket closes.

    once: the server ends with its last command. It becomes this command if it has not forked another one before. Then
        the command's age would include these. If this process has the modules, the server is a fork of it.
    """

    def __init__(self, modules: Sequence[str], once: bool) -> None:
        self._once, self._has_forked = once, False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_PATIENCE_S)
        self._process: Process
        with theirs:
            if once and sys.modules.keys() >= set(modules) and _has_one_thread():
                self._process = ForkedProcess(self._fork(theirs))
                return
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), "once" if once else "forks", *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=child_environment(os.environ),
                pass_fds=(theirs.fileno(),),
            )

    def _fork(self, theirs: socket.socket) -> int:
        """Fork a server for one command. Its descriptors, signals and environment are the same as in a new program."""
        # Otherwise the fork would write the buffered output again.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        if pid := os.fork():
            # Once the fork answers, it leads a process group, which can be killed as a whole.
            with suppress(OSError):
                self._control.recv(1)
            return pid
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        theirs.send(b".")
        self._control.close()
        os.closerange(3, theirs.fileno())
        os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        for name in os.environ.keys() - child_environment(os.environ).keys():
            del os.environ[name]
        try:
            request = _serve(theirs)
            theirs.close()
            if request is not None:
                become(*request)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            # The remaining code of this command must not run in the fork.
            os._exit(1)

    def start(
        self, module: str, arguments: Sequence[str], descriptors: Sequence[int], is_last: bool = True
    ) -> Process | None:
        """Run a module; None if the server cannot. To fork, it waits for the server's imports.

        is_last: whether a server for one run has no further commands.
        """
        ends = self._once and is_last
        becomes = ends and not self._has_forked
        request = json.dumps([module, list(arguments), becomes]).encode()
        if self._control.fileno() < 0 or len(request) > _REQUEST_BYTES or len(descriptors) > _MOST_DESCRIPTORS:
            return None
        try:
            socket.send_fds(self._control, [request], list(descriptors))
            if becomes:
                self._control.close()
                return self._process
            answer = self._control.recv(64)
        except OSError:
            answer = b""
        if not answer:
            # The server has ended or is late. A late server must not fork the service, which the caller now starts.
            self.close()
            return None
        self._has_forked = True
        if ends:
            self.close()
        return ForkedProcess(int(answer))

    def close(self) -> None:
        """End the server. Its forks, and the process that it became, continue."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class ForkServers:
    """The servers of each module that this process starts.

    only_forks: no server ends with a command, so all of them can start further ones.
    """

    by_module: Mapping[str, _Server]
    only_forks: bool = False

    def forking(self) -> "ForkServers":
        """The same servers, for commands that are not their last."""
        return replace(self, only_forks=True)

    def start(self, command: Sequence[str], descriptors: Sequence[int]) -> Process | None:
        """Run `PYTHON -m MODULE ARGUMENTS...` in its own session; None if no server can do it.

        descriptors: standard input, output and error, then further descriptors to keep open.
        """
        executable, flag, module, *arguments = (*command, "", "", "")[: max(3, len(command))]
        # For a service's function, use the service's server.
        started = arguments[0].partition(".")[0] if module == _START else module
        server = self.by_module.get(started)
        if executable != sys.executable or flag != "-m" or server is None:
            return None
        return server.start(module, arguments, descriptors, is_last=not self.only_forks)

    def close(self) -> None:
        """End the servers. The started processes continue."""
        for server in self.by_module.values():
            server.close()


def start_process(
    command: Sequence[str], streams: tuple[int, int, int], servers: ForkServers | None, inherited: tuple[int, ...] = ()
) -> Process:
    """Run a command in its own session, as a fork if possible. Raises OSError when it cannot start.

    streams: standard input, output and error. inherited: further descriptors to keep open.
    """
    forked = servers.start(command, (*streams, *inherited)) if servers else None
    stdin, stdout, stderr = streams
    return forked or subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        env=child_environment(os.environ),
        pass_fds=inherited,
    )


def fork_servers() -> AbstractContextManager[ForkServers | None]:
    """The servers for one run: one for the learner, another for the other services. Their imports begin at once.

    The learner's server becomes the learner. Yields None if the launcher cannot adopt forks on this system.
    """

    def begin() -> dict[str, _Server]:
        learner = _Server(_LEARNER_MODULES, once=True)
        return {_LEARNER: learner, **dict.fromkeys(_FORKED, _Server(_SHARED, once=False))}

    return _adopting_forks(begin)


def run_server() -> AbstractContextManager[ForkServers | None]:
    """The server for a command with many runs: forks their launchers, which fork learners. None: see `fork_servers`."""
    return _adopting_forks(lambda: {_COMMAND: _Server(("actorq_apps.cli.train", *_LEARNER_MODULES), once=False)})


def once_forked(modules: Sequence[str]) -> AbstractContextManager[ForkServers]:
    """For a command that starts each of these services once: forks of the command itself, created at once.

    The forks have the modules that the command has imported. If the command has threads, they are new programs instead.
    """
    return closing(ForkServers({module: _Server(("actorq.client",), once=True) for module in modules}))


@contextmanager
def _adopting_forks(begin: Callable[[], dict[str, _Server]]) -> Iterator[ForkServers | None]:
    try:
        if _adopt_orphans(True):
            with closing(ForkServers(begin())) as servers:
                yield servers
        else:
            yield None
    finally:
        _adopt_orphans(False)


def _has_one_thread() -> bool:
    """Whether this process can fork: no other thread holds a lock, in Python or in a library."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/task")) == 1
    return False


def _adopt_orphans(adopt: bool) -> bool:
    """Become the parent of orphans, such as a server's forks. Returns whether the system supports this."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0)


# Module, arguments, descriptors.
_Request = tuple[str, list[str], list[int]]


def _serve(control: socket.socket) -> _Request | None:
    """Fork for each request until one is for this process. Returns the request to run, and None after the last one."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, _MOST_DESCRIPTORS)
        if not message:
            return None
        module, arguments, becomes = json.loads(message)
        if becomes or not (pid := _fork()):
            return module, arguments, list(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(str(pid).encode())


def _fork() -> int:
    """Fork a process that the launcher adopts, in its own session. Returns its pid here and 0 in the new process."""
    reading, writing = os.pipe()
    between = os.fork()
    if not between:
        if os.fork():
            os._exit(0)
        os.close(reading)
        os.setsid()
        os.write(writing, str(os.getpid()).encode())
        os.close(writing)
        return 0
    os.close(writing)
    os.waitpid(between, 0)
    with os.fdopen(reading) as answer:
        return int(answer.read())


def become(module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> None:
    """Run a module as the program of this forked process; see ForkServers.start. The process ends with the module."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if numpy := sys.modules.get("numpy"):
        # Forks inherit the server's generator. Without this, all would draw the same numbers.
        numpy.random.seed()
    with suppress(OSError):
        # The process still has the server's command line. This sets the name in tools such as ps and top.
        name = arguments[arguments.index("--name") + 1] if "--name" in arguments else ""
        _COMMAND_NAME.write_text(name or module, encoding="utf-8")
    sys.argv = [module, *arguments]
    if sys.path[:1] != [os.getcwd()]:
        # A program started with -m finds the user's modules here. The fork of an installed command would not.
        sys.path.insert(0, os.getcwd())
    # The server has already imported the package's main module, and runpy warns about that.
    sys.modules.pop(f"{module}.__main__", None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        from actorq.process import leave

        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))


def _main() -> None:
    descriptor, kind, *modules = sys.argv[1:]
    with fast_imports():
        for module in modules:
            # The service that needs the missing module reports it.
            with suppress(ImportError):
                import_module(module)
    if kind != "once":
        from actorq.telemetry.process_stats import FORK_SERVER

        _COMMAND_NAME.write_text(FORK_SERVER, encoding="utf-8")
    with socket.socket(fileno=int(descriptor)) as control:
        request = _serve(control)
    if request is not None:
        become(*request)


if __name__ == "__main__":
    _main()
