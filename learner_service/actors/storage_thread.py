"""A thread for work that may wait for the replay's lock or the disk, so that the event loop never waits."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from actorq.errors import UnavailableError

# With this many waiting jobs, streams are not read. A segment's message has at most 2 MiB.
_MOST_JOBS = 64


# The work, and the functions that get its result or its error.
_Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]]


class StorageThread:
    """Runs jobs one at a time, in the order of submission, and reports each result on the event loop.

    Jobs that finish while the loop is busy are reported together. Call all methods on the event loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._telling = False
        self._waiting = 0
        self.has_room = asyncio.Event()
        """Whether the queue has room for more jobs."""
        self.has_room.set()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Run `work` on the thread. Then call `done(result)` or `failed(error)` on the event loop."""
        if self._closed:
            raise UnavailableError("the learner is ending")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread.start()
        self._waiting += 1
        if self._waiting >= _MOST_JOBS:
            self.has_room.clear()
        self._jobs.put((work, done, failed))

    async def settle(self) -> None:
        """Wait until all jobs submitted so far are done and reported."""
        if self._loop is not None and not self._closed:
            done = asyncio.Event()
            self.submit(lambda: None, lambda _: done.set(), lambda _: done.set())
            await done.wait()

    async def close(self) -> None:
        """Finish all jobs and end the thread."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        if self._loop is not None:
            await asyncio.to_thread(self._thread.join)
        self._tell()

    def _run(self) -> None:
        assert self._loop is not None
        while (job := self._jobs.get()) is not None:
            work, done, failed = job
            try:
                report = partial(done, work())
            except BaseException as error:
                report = partial(failed, error)
            self._done.append(report)
            # No lock is needed: a race at most wakes the loop once more than necessary.
            if not self._telling:
                self._telling = True
                # A loop that was closed meanwhile needs no result.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._telling = False
        while self._done:
            report = self._done.popleft()
            self._waiting -= 1
            report()
        if self._waiting < _MOST_JOBS:
            self.has_room.set()
