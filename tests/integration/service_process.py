"""A service as a process of its own, as a pod runs it."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_PATIENCE_S = 60


@dataclass(frozen=True)
class ServiceProcess:
    """A service that serves; `metrics` is empty unless it was asked for."""

    address: str
    metrics: str


def refusal(service: str, *arguments: str) -> str:
    """The line in which a service says that it does not start."""
    command = [sys.executable, "-m", "actorq.cli.main", service, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert ended.returncode == 2, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "error: " in line]
    assert ended.stderr.strip() == lines[-1], ended.stderr
    return lines[-1]


@contextmanager
def service_process(service: str, *arguments: str) -> Iterator[ServiceProcess]:
    """Run it until the block ends; its addresses are what it logs."""
    command = [sys.executable, "-m", "actorq.cli.main", service, "--lifeline", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
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
        yield ServiceProcess(address, metrics)
    finally:
        process.kill()
        process.wait(_PATIENCE_S)
        if reader.ident is not None:
            reader.join(_PATIENCE_S)
        process.stdin.close()
        process.stdout.close()
