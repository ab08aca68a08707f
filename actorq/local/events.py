"""What the supervisor of a run waits for: everything that happens arrives on one queue."""

import queue
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from actorq.domain.status import RunStatus


@dataclass(frozen=True)
class ChildExited:
    """A child process is gone; `code` is its exit code, or minus the signal that killed it."""

    name: str
    pid: int
    code: int


@dataclass(frozen=True)
class ChildReady:
    """A child process serves."""

    name: str
    pid: int


@dataclass(frozen=True)
class SignalReceived:
    """Someone asked the launcher to end."""

    number: signal.Signals


@dataclass(frozen=True)
class StatusReceived:
    """The learner told how the run goes."""

    status: RunStatus


Event = ChildExited | ChildReady | SignalReceived | StatusReceived
Events = queue.SimpleQueue[Event]


@contextmanager
def signals_as_events(events: Events) -> Iterator[None]:
    """Put SIGINT and SIGTERM on the queue instead of letting them end the process; main thread only.

    A handler in Python is not enough: one that arrives just before the main thread blocks in the queue would run only
    when something else wakes it. Python's own wakeup descriptor is written to at once, and a thread reads it.
    """
    arrived, wakeup = socket.socketpair()
    wakeup.setblocking(False)

    def pass_on() -> None:
        while numbers := arrived.recv(64):
            for number in numbers:
                if number in (signal.SIGINT, signal.SIGTERM):
                    events.put(SignalReceived(signal.Signals(number)))

    previous_descriptor = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    thread = threading.Thread(target=pass_on, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_descriptor)
        wakeup.close()
        thread.join()
        arrived.close()
