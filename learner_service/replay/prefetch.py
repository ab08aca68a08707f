"""Draws the next batch while the learner updates on the one before."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.n_step import NStepBatch
from learner_service.replay.samplers import Sampled

# One is updated on while the other is drawn.
_BATCHES = 2


@dataclass(frozen=True)
class Drawn:
    """A batch, and the rows that it was drawn from."""

    batch: NStepBatch
    sampled: Sampled


class Prefetcher:
    """One thread that draws one batch ahead, into arrays that are used again. All methods are the learner's thread's.

    What is drawn ahead has not yet seen the priorities of the batch that is being updated on, nor what is inserted
    meanwhile: it is older by one batch, that is all. A batch is drawn only when the rate limiter would let the learner
    sample it, and counted as sampled when the learner takes it. The learner is the only one who samples and inserts
    only add to what is allowed, so the limiter's word holds until then, and what is never taken was never sampled.
    """

    def __init__(self, replay: ReplayBuffer, size: int, empty: Callable[[int], NStepBatch]) -> None:
        """Draw batches of `size` transitions from `replay`, into two that `empty` makes of that size."""
        self._replay = replay
        self._size = size
        self._batches = tuple(empty(size) for _ in range(_BATCHES))
        self._next = 0
        self._ahead: Future[Drawn] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetcher")

    @property
    def nbytes(self) -> int:
        """Bytes of the batches."""
        return sum(batch.nbytes for batch in self._batches)

    def take(self, timeout: float) -> Drawn | None:
        """The next batch, once the limiter allows it; None after `timeout` seconds.

        It is the learner's until the call after. Raises what `ReplayBuffer.draw` raises.
        """
        limiter = self._replay.limiter
        if self._ahead is None:
            if not limiter.await_sample(self._size, timeout):
                return None
            self._draw()
        assert self._ahead is not None
        drawn = self._ahead.result()
        self._ahead = None
        limiter.sample(self._size)
        if limiter.can_sample(self._size):
            self._draw()
        return drawn

    def update_priorities(self, drawn: Drawn, priorities: NDArray[np.float32]) -> None:
        """Set the priorities float32[B] of a batch, after the drawing that goes on, which is then never in between.

        So it is not left to the threads which draw sees them first: it is the one after the next.
        """
        self.settle()
        self._replay.update_priorities(drawn.sampled, priorities)

    def settle(self) -> None:
        """Wait for a drawing that goes on, so that what follows is after it, however fast the threads are."""
        if self._ahead is not None:
            self._ahead.exception()

    def discard(self) -> None:
        """Drop what was drawn ahead, and wait for a drawing that goes on.

        Sampler and limiter then owe nothing to anyone: what is saved of them now, this process goes on from just as one
        does that restores it.
        """
        self.settle()
        self._ahead = None

    def close(self) -> None:
        """End the thread."""
        self.discard()
        self._thread.shutdown()

    def _draw(self) -> None:
        batch = self._batches[self._next]
        self._next = (self._next + 1) % _BATCHES
        self._ahead = self._thread.submit(self._fill, batch)

    def _fill(self, batch: NStepBatch) -> Drawn:
        return Drawn(*self._replay.draw(self._size, batch))
