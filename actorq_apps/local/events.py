"""The events for a run's supervisor. All arrive on one queue."""

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
    """A child process has ended. `code` is its exit code, or minus the signal that killed it."""

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
    """The launcher was asked to end."""

    number: signal.Signals


# The learner sends statuses.
Event = ChildExited | ChildReady | SignalReceived | RunStatus
Events = queue.SimpleQueue[Event]


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that started processes end. Main thread only."""

    def leave(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_as_events(events: Events) -> Iterator[None]:
    """Put SIGINT and SIGTERM on the queue instead of ending the process. Main thread only.

    A Python handler is not enough. If the signal arrives just before the main thread blocks in the queue, the handler
    runs only when the thread wakes up for another reason. Python writes to its wakeup descriptor at once, and a thread
    reads it.
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
