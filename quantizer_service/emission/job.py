"""Cancellation of CPU work: ends the current run of ONNX Runtime when the work takes too long.

Functions inside an emission find their job with `current_job`. Work without a job, such as a command's, has no limit.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import onnxruntime as ort

from actorq.errors import InvalidInputError


class OverdueError(InvalidInputError):
    """The work took longer than its limit."""


class Job:
    """Cancellable work. The working thread calls `check` and `run_options`. Another thread calls `cancel`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason = ""
        self._running: ort.RunOptions | None = None

    def cancel(self, reason: str) -> None:
        """End the current run and prevent further runs. `reason` is the error's message."""
        with self._lock:
            self._reason = reason
            if self._running is not None:
                self._running.terminate = True

    def check(self) -> None:
        """Raise OverdueError when the job was cancelled."""
        if self._reason:
            raise OverdueError(self._reason)

    @contextmanager
    def run_options(self) -> Iterator[ort.RunOptions]:
        """Options for one run that `cancel` can end. Raises OverdueError when the job was cancelled."""
        options = ort.RunOptions()
        with self._lock:
            self.check()
            self._running = options
        try:
            yield options
        finally:
            with self._lock:
                self._running = None
            self.check()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the current job of the thread inside the context."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Job | None] = ContextVar("job", default=None)


def current_job() -> Job:
    """The current job; a new job that is never cancelled when there is none."""
    return _current.get() or Job()
