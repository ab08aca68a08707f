"""A piece of CPU work that has a limit and can be broken off: ONNX Runtime ends the run that is under way.

The work does not know its job: `current_job` finds it, so that sessions deep inside of an emission are ended too. Work
without a job, such as a command's, has no limit.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import onnxruntime as ort

from actorq.errors import InvalidInputError


class OverdueError(InvalidInputError):
    """Work took longer than its limit."""


class Job:
    """`check` and `run_options` are for the thread that works, `cancel` is for any other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason = ""
        self._running: ort.RunOptions | None = None

    def cancel(self, reason: str) -> None:
        """End the run that is under way and let no other begin; `reason` is told by the error."""
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
        """Options for one run, which `cancel` ends; raises OverdueError when it did."""
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
        """Make it the job of what this thread calls inside."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Job | None] = ContextVar("job", default=None)


def current_job() -> Job:
    """The job of the code that calls this; one that nobody cancels when there is none."""
    return _current.get() or Job()
