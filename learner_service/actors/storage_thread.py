"""The thread for everything that may wait for the replay's lock or for the disk, so that the event loop never does."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorq.errors import UnavailableError

# Jobs that wait for the thread before streams are no longer read; the message of a segment has at most 2 MiB.
_MOST_JOBS = 64


@dataclass(slots=True)
class _Job:
    work: Callable[[], Any]
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    result: Any = None
    error: BaseException | None = None


class StorageThread:
    """Does one job after the other, in the order in which they were submitted, and tells the event loop of each.

    Jobs that are done while the loop is busy are told together. All methods are called on the event loop; the first
    job starts the thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[_Job] = deque()
        self._telling = False
        self._waiting = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="storage", daemon=True)

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Do `work` on the thread; then call `done` with its result, or `failed` with its error, on the event loop."""
        if self._closed:
            raise UnavailableError("the learner is ending")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread.start()
        self._waiting += 1
        if self._waiting >= _MOST_JOBS:
            self._has_room.clear()
        self._jobs.put(_Job(work, done, failed))

    async def room(self) -> None:
        """Wait until more may be submitted."""
        if not self._has_room.is_set():
            await self._has_room.wait()

    async def settle(self) -> None:
        """Wait until all jobs that were submitted before are done and told."""
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
            try:
                job.result = job.work()
            except BaseException as error:
                job.error = error
            self._done.append(job)
            # Read and written without a lock: at worst the loop is woken once too often.
            if not self._telling and not self._loop.is_closed():
                self._telling = True
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._telling = False
        while self._done:
            job = self._done.popleft()
            self._waiting -= 1
            if job.error is None:
                job.done(job.result)
            else:
                job.failed(job.error)
        if self._waiting < _MOST_JOBS:
            self._has_room.set()
