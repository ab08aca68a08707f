"""Runs real services as processes, and measures their CPU time and resident memory."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import psutil

from actorq.transport.options import CLIENT_OPTIONS

_START_S = 60.0


@dataclass(frozen=True)
class Cost:
    """CPU seconds since the start of a process, and its resident bytes."""

    cpu_s: float
    resident_bytes: int


@dataclass(frozen=True)
class ServiceProcess:
    """A service at `address`. `log` has its log lines so far."""

    address: str
    process: psutil.Process
    log: list[str] = field(default_factory=list, compare=False)

    def cost(self) -> Cost:
        """The resources used so far."""
        with self.process.oneshot():
            times = self.process.cpu_times()
            return Cost(times.user + times.system, self.process.memory_info().rss)


@contextmanager
def serving(module: str, *flags: str, command: Sequence[str] = ()) -> Iterator[ServiceProcess]:
    """Run `python -m MODULE COMMAND` on a free port. It is killed at the end, because its files are not kept."""
    given = [sys.executable, "-m", module, *command, "--listen", "127.0.0.1:0", *flags]
    process = subprocess.Popen(given, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    log, address = process.stderr, Future[str]()
    lines: list[str] = []

    def read() -> None:
        for line in log:
            lines.append(line)
            if "serving on " in line and not address.done():
                address.set_result(line.partition("serving on ")[2].split()[0])
        if not address.done():
            address.set_exception(RuntimeError(f"{module} did not start: {''.join(lines)}"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield ServiceProcess(address.result(_START_S), psutil.Process(process.pid), lines)
    finally:
        process.kill()
        process.wait()
        reader.join()
        log.close()


def connect(address: str) -> grpc.aio.Channel:
    """A channel with its own connection, like a pod's. By default all channels of a process share one."""
    return grpc.aio.insecure_channel(address, options=[*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1)])
