"""What the supervisor of a run waits for: everything that happens arrives on one queue."""

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from actorq.status import RunStatus


@dataclass(frozen=True)
class ChildExited:
    """A child process is gone; `code` is its exit code, or minus the signal that killed it."""

    name: str
    pid: int
    code: int


@dataclass(frozen=True)
class SignalReceived:
    """Someone asked the launcher to end."""

    number: signal.Signals


@dataclass(frozen=True)
class StatusReceived:
    """The learner told how the run goes."""

    status: RunStatus


Event = ChildExited | SignalReceived | StatusReceived
Events = queue.SimpleQueue[Event]


@contextmanager
def signals_as_events(events: Events) -> Iterator[None]:
    """Put SIGINT and SIGTERM on the queue instead of letting them end the process; main thread only."""

    def put(number: int, _: FrameType | None) -> None:
        # SimpleQueue.put is reentrant, so that a handler may call it whatever it interrupted.
        events.put(SignalReceived(signal.Signals(number)))

    previous = {number: signal.signal(number, put) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
