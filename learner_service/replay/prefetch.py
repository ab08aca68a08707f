"""Draws the next batch during the learner's update on the current batch."""

import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actorq.errors import ConflictError
from learner_service.batch import Batch
from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.n_step import Allocate
from learner_service.replay.recurrent.sequences import transitions_of
from learner_service.replay.samplers import Sampled


@dataclass(frozen=True)
class Drawn:
    """A batch, and the rows from which it was drawn."""

    batch: Batch
    sampled: Sampled


class Prefetcher:
    """Draws one batch ahead on its own thread, into two sets of arrays. Call all methods on the learner's thread.

    A batch drawn ahead lacks the priorities of the batch in use, and the inserts since the draw. A batch is drawn only
    when the rate limiter allows it, and is counted when the learner gets it. The permission cannot expire in between,
    because only the learner samples, and inserts only allow more samples. The transitions may be gone, however,
    because they are damaged, or were evicted by segments without transitions.

    size: rows of a batch: transitions or sequences. allocate: makes the arrays.
    transitions: the most transitions that the limiter counts for a batch; `size` by default. A batch of sequences
        counts those of its mask.
    """

    def __init__(
        self, replay: ReplayBuffer, size: int, allocate: Allocate = np.empty, transitions: int | None = None
    ) -> None:
        self._replay = replay
        self._size, self._transitions = size, size if transitions is None else transitions
        self._batches = (replay.empty_batch(size, allocate), replay.empty_batch(size, allocate))
        self._in_turn = itertools.cycle(self._batches)
        self._ahead: Future[Drawn | None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetcher")

    @property
    def nbytes(self) -> int:
        """Bytes of the batches."""
        return sum(batch.nbytes for batch in self._batches)

    def next_batch(self, timeout: float) -> Drawn | None:
        """The next batch, once the limiter allows it; None after `timeout` seconds, and while the replay is empty.

        The batch is valid until the next call. Raises the errors of `ReplayBuffer.draw`.
        """
        limiter = self._replay.limiter
        if self._ahead is None and limiter.await_sample(self._transitions, timeout):
            self._draw()
        drawn = self._ahead.result() if self._ahead else None
        self._ahead = None
        if drawn is not None:
            batch = drawn.batch
            limiter.sample(transitions_of(batch) if "mask" in batch else self._transitions)
            if limiter.can_sample(self._transitions):
                self._draw()
        return drawn

    def update_priorities(self, drawn: Drawn, priorities: NDArray[np.float32]) -> None:
        """Set the priorities float32[B] of a batch, after the draw in progress."""
        self.settle()
        self._replay.update_priorities(drawn.sampled, priorities)

    def settle(self) -> None:
        """Wait for the draw in progress, so that the order of draws does not depend on the threads' timing."""
        if self._ahead is not None:
            self._ahead.exception()

    def discard(self) -> None:
        """Wait for the draw in progress, and discard it. The process then continues from the checkpoint's state."""
        self.settle()
        self._ahead = None

    def close(self) -> None:
        """End the thread."""
        self.discard()
        self._thread.shutdown()

    def _draw(self) -> None:
        self._ahead = self._thread.submit(self._fill, next(self._in_turn))

    def _fill(self, batch: Batch) -> Drawn | None:
        try:
            return Drawn(*self._replay.draw(self._size, batch))
        except ConflictError:
            # The replay is empty. The limiter allows the next draw when it has enough transitions again.
            return None
