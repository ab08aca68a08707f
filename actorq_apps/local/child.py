"""One child process: its log, its lifeline, and the thread that waits for its exit."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from actorq.errors import ActorQError, UserError
from actorq.process import EXIT_USER_ERROR
from actorq_apps.local.events import ChildExited
from actorq_apps.local.forkserver import ForkServers, start_process

_ERROR_PREFIX = "error: "
_TAIL_BYTES = 16 * 1024
_MOST_LINE_BYTES = 64 * 1024


class Child:
    """A started process in its own session. Ctrl-C on the terminal therefore reaches only the launcher.

    The child's standard input is a socket, its lifeline. Only this object holds the other end, which closes on exec.
    The child therefore reads the end of the file when the launcher ends, even after SIGKILL. A service writes a line to
    its lifeline once it serves. Output is appended to `log`. Other threads call `on_exit` and `on_line`.

    inherited, servers: see `start_process`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        on_exit: Callable[[ChildExited], None],
        inherited: tuple[int, ...] = (),
        servers: ForkServers | None = None,
        on_line: Callable[["Child", str], None] | None = None,
    ) -> None:
        self.name, self.log, self._on_exit = name, log, on_exit
        self._lifeline, lifeline = socket.socketpair()
        with log.open("ab") as output, lifeline:
            self._log_start = output.tell()
            streams = (lifeline.fileno(), output.fileno(), output.fileno())
            try:
                self._process = start_process(command, streams, servers, inherited)
            except OSError as error:
                self._lifeline.close()
                raise ActorQError(f"{name}: cannot start {command[0]} ({error.strerror})") from None
        self.pid = self._process.pid
        self._waiter = threading.Thread(target=self._wait, name=f"wait-{name}", daemon=True)
        self._waiter.start()
        if on_line is not None:
            threading.Thread(target=self._listen, args=(on_line,), name=f"lines-{name}", daemon=True).start()

    def terminate(self) -> None:
        """Ask the process to drain."""
        self._process.terminate()

    def release(self) -> None:
        """Close the lifeline. The process then no longer waits for others of the run, which have ended."""
        # Only shuts the socket down, because a thread may still read from it. Deleting this object closes the socket.
        with suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the process and its children, and wait until they are gone."""
        if self._process.returncode is None:
            self._kill_group()
        self._waiter.join()

    def end(self, patience_s: float) -> None:
        """Ask the process to drain, kill it after `patience_s` seconds, and wait until it has ended."""
        if self._process.returncode is None:
            self.terminate()
            self._waiter.join(patience_s)
        self.kill()

    def last_lines(self, count: int) -> list[str]:
        """The last lines that the process has logged since this start."""
        with self.log.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._log_start, end - _TAIL_BYTES))
            return stream.read().decode("utf-8", "replace").splitlines()[-count:]

    def user_error(self) -> str | None:
        """The line in which the process reported a user's error, if any."""
        return _reported_error(self.last_lines(50))

    def failure(self, code: int, moment: str) -> ActorQError:
        """The error for an unexpected exit: the process's own report, or else its last lines."""
        if code == EXIT_USER_ERROR and (mistake := self.user_error()):
            return UserError(mistake)
        lines = "".join(f"\n  {line}" for line in self.last_lines(5))
        return ActorQError(f"{self.name} ended ({describe_exit(code)}) {moment}; its last lines:{lines}")

    def write(self, line: bytes) -> None:
        """Send the process a line on its lifeline. Does nothing if the process has ended."""
        with suppress(OSError):
            self._lifeline.sendall(line + b"\n")

    def forget(self) -> None:
        """In a fork of this process: release the lifeline without closing its descriptor."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._lifeline.fileno())
        os.close(nothing)

    def _listen(self, on_line: Callable[["Child", str], None]) -> None:
        with suppress(OSError), self._lifeline.makefile("rb") as lines:
            while line := lines.readline(_MOST_LINE_BYTES):
                on_line(self, line.decode("utf-8", "replace").rstrip("\n"))

    def _wait(self) -> None:
        code = self._process.wait()
        # Child processes of the environments must not outlive a killed actor.
        self._kill_group()
        self.release()
        self._on_exit(ChildExited(self.name, self.pid, code))

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _reported_error(lines: Sequence[str]) -> str | None:
    """The process's last report of a user's error, without its prefix; None if there is none."""
    found = [line for line in lines if line.startswith(_ERROR_PREFIX)]
    return found[-1].removeprefix(_ERROR_PREFIX) if found else None


def run_to_end(command: Sequence[str], servers: ForkServers | None, failure: str) -> None:
    """Run a command, as a fork if possible. Its standard input is a lifeline, which closes when this process ends.

    Raises the user's error that the command reports. Other failures raise ActorQError, which begins with `failure`.
    """
    held, lifeline = socket.socketpair()
    with open(os.devnull, "wb") as output, TemporaryFile("w+") as errors, held:
        with lifeline:
            process = start_process(command, (lifeline.fileno(), output.fileno(), errors.fileno()), servers)
        try:
            code = process.wait()
        except BaseException:
            # Ctrl-C on the terminal does not reach the process.
            process.kill()
            raise
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if code == EXIT_USER_ERROR and (mistake := _reported_error(lines)):
        raise UserError(mistake)
    if code:
        raise ActorQError(f"{failure}: {lines[-1] if lines else f'exit code {code}'}")


def describe_exit(code: int) -> str:
    """An exit code in words: the name of the signal, or the code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
