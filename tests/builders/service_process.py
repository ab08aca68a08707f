"""A service as a process of its own, as a pod runs it."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager

from tests.builders.forked_commands import ForkedCommand

_PATIENCE_S = 60


class ServiceProcess:
    """`python -m SERVICE_service`, on a port of its own if no other is given. What it writes is read as it comes."""

    def __init__(self, service: str, *arguments: str) -> None:
        command = (f"{service}_service", "--lifeline", "--listen", "127.0.0.1:0", *arguments)
        self._process = ForkedCommand(*command, one_output=True)
        self._addresses: Future[tuple[str, str]] = Future()
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def address(self) -> str:
        """Where it serves. Waits until it does."""
        return self._addresses.result(_PATIENCE_S)[0]

    @property
    def metrics(self) -> str:
        """Where its metrics are; empty unless it was asked for them. Waits until it serves."""
        return self._addresses.result(_PATIENCE_S)[1]

    def end(self) -> tuple[int, str]:
        """Wait for its end; gives its exit code and the last line that it wrote."""
        code = self._process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        return code, self._lines[-1].rstrip() if self._lines else ""

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self.end()

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def close(self) -> None:
        """Kill it if it has not ended by itself."""
        self.kill()
        self._process.stdin.close()

    def _read(self) -> None:
        metrics = ""
        with self._process.stdout as log:
            for line in log:
                self._lines.append(line)
                metrics = line.partition("metrics on http://")[2].partition("/")[0] or metrics
                if "serving on " in line and not self._addresses.done():
                    self._addresses.set_result((line.partition("serving on ")[2].split()[0], metrics))
        if not self._addresses.done():
            self._addresses.set_exception(AssertionError("".join(self._lines)))


def refusal(service: str, *arguments: str) -> str:
    """The line in which a service says that it does not start."""
    process = ForkedCommand(f"{service}_service", *arguments)
    _, errors = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 2, errors
    lines = [line for line in errors.splitlines() if "error: " in line]
    assert errors.strip() == lines[-1], errors
    return lines[-1]


@contextmanager
def service_process(service: str, *arguments: str) -> Iterator[ServiceProcess]:
    """A service in a process of its own, until the block ends."""
    with closing(ServiceProcess(service, *arguments)) as process:
        yield process
