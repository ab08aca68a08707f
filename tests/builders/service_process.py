"""A service as a process of its own, as a pod runs it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.builders.forked_commands import ForkedCommand

_PATIENCE_S = 60


@dataclass(frozen=True)
class ServiceProcess:
    """A service that serves; `metrics` is empty unless it was asked for."""

    address: str
    metrics: str
    pid: int


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
    """Run it until the block ends; its addresses are what it logs."""
    process = ForkedCommand(f"{service}_service", "--lifeline", *arguments, one_output=True)
    metrics, said = "", []
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    try:
        for line in process.stdout:
            said.append(line)
            metrics = line.partition("metrics on http://")[2].partition("/")[0] or metrics
            if address := line.partition("serving on ")[2].strip():
                break
        else:
            raise AssertionError("".join(said))
        # So that it never waits for somebody to read what it says.
        reader.start()
        yield ServiceProcess(address, metrics, process.pid)
    finally:
        process.kill()
        process.wait(_PATIENCE_S)
        if reader.ident is not None:
            reader.join(_PATIENCE_S)
        process.stdin.close()
        process.stdout.close()
