"""Runs the quantizer's CPU work on one thread. Limits the time of each job and detects hanging jobs."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ParamSpec, TypeVar

from actorq.errors import UnavailableError
from actorq.tasks import may_be_left
from quantizer_service.emission.job import Job

P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """Runs functions one after another, in the order of the calls.

    limit_s: time limit of a function. At the limit its run in ONNX Runtime ends, and the function raises OverdueError.
    hanging: context of each running function. A watchdog uses it to end the process when a function cannot be ended.
    clock: monotonic seconds.

    cancelled: number of functions that exceeded the limit.
    """

    def __init__(
        self,
        limit_s: float,
        hanging: AbstractContextManager[object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._hanging = hanging or nullcontext()
        self._clock = clock
        # One thread, because the emitter is not thread-safe. A second thread would also use a core of the learner or
        # actors.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="emitter")
        self._running: _Timed | None = None
        self._closed = False
        self.cancelled = 0

    @property
    def busy_s(self) -> float:
        """Seconds since the running function began; 0 when none runs."""
        return running.age_s(self._clock()) if (running := self._running) else 0.0

    @property
    def alive(self) -> bool:
        """Whether the running function, if any, is within its limit."""
        return self.busy_s <= self._limit_s

    async def close(self) -> None:
        """Accept no more functions, and wait for the accepted ones."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._pool, lambda: None)

    async def do(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function after all waiting ones. Raises UnavailableError after `close`.

        When the caller is cancelled, a waiting function is dropped and a running function finishes.
        """
        if self._closed:
            raise UnavailableError("the quantizer is draining; connect again later")
        loop = asyncio.get_running_loop()
        job = _Timed()
        # A partial, because a lambda's frame in an error's traceback would keep the arguments alive.
        call = loop.run_in_executor(self._pool, partial(self._run, job, partial(function, *args, **kwargs)))
        job.timer = loop.call_later(self._limit_s, self._check_limit, loop, job)
        try:
            return await may_be_left(call, "work of the quantizer")
        finally:
            # A function that still runs without its caller keeps its limit.
            if job.over or job.since is None:
                job.timer.cancel()

    def _run(self, job: "_Timed", function: Callable[[], R]) -> R:
        job.since = self._clock()
        self._running = job
        try:
            with self._hanging, job.current():
                return function()
        finally:
            self._running = None
            job.over = True

    def _check_limit(self, loop: asyncio.AbstractEventLoop, job: "_Timed") -> None:
        if job.over:
            return
        left = self._limit_s - job.age_s(self._clock())
        if left > 0:
            job.timer = loop.call_later(left, self._check_limit, loop, job)
            return
        self.cancelled += 1
        remedy = "publish a smaller policy, give the quantizer more CPU, or raise quantizer.work_limit_s"
        job.cancel(f"it took more than {self._limit_s:g} s and was ended; {remedy}")


class _Timed(Job):
    """A job with the time at which its function began."""

    timer: asyncio.TimerHandle

    def __init__(self) -> None:
        super().__init__()
        self.since: float | None = None
        self.over = False

    def age_s(self, now: float) -> float:
        return 0.0 if self.since is None else max(0.0, now - self.since)
