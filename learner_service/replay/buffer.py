"""The replay buffer: store, sampler and rate limiter behind one lock, as the trainer and the intake use them."""

import threading

import numpy as np
from numpy.typing import NDArray

from actorq.errors import UserError
from actorq.trajectory import EnvironmentSpec, Segment
from learner_service.replay.n_step import NStepBatch, assemble
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.samplers import Sampled, Sampler
from learner_service.replay.sequences import SegmentSource
from learner_service.replay.store import Inserted, ReplayStore


class ReplayBuffer:
    """Every method may be called from any thread. The buffer owns the store and closes it.

    Whoever inserts first asks `limiter.try_reserve`; whoever samples first asks `limiter.await_sample`. Both happen
    outside the buffer's lock, so neither side ever waits for the other while holding it.
    """

    def __init__(
        self, store: ReplayStore, sampler: Sampler, limiter: RateLimiter, n_step: int, discount: float
    ) -> None:
        """Join parts that belong together; the limiter takes over how much the store already holds.

        Raises UserError unless n_step >= 1 and 0 <= discount <= 1.
        """
        if n_step < 1 or not 0 <= discount <= 1:
            raise UserError(f"replay: need n_step >= 1 and discount in [0, 1], got {n_step} and {discount}")
        self.limiter = limiter
        """Admission of inserts and samples."""
        self._store = store
        self._sampler = sampler
        self._n_step = n_step
        self._discount = discount
        self._lock = threading.Lock()
        limiter.load_state_dict({"inserts": store.total_transitions, "samples": limiter.samples})

    @property
    def spec(self) -> EnvironmentSpec:
        """The environment whose transitions these are."""
        return self._store.spec

    @property
    def capacity(self) -> int:
        """Rows of the store."""
        return self._store.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the store's files when full."""
        return self._store.nbytes

    @property
    def transitions(self) -> int:
        """Transitions that can be sampled now."""
        with self._lock:
            return self._store.transitions

    @property
    def total_transitions(self) -> int:
        """Transitions ever inserted, over all restarts."""
        with self._lock:
            return self._store.total_transitions

    def last_sequences(self) -> dict[tuple[bytes, int], int]:
        """(actor key, incarnation) -> last sequence number inserted."""
        with self._lock:
            return self._store.last_sequences()

    def insert(self, segment: Segment, source: SegmentSource, reserved: int) -> Inserted | None:
        """Store `segment`, admitted under a reservation of `reserved` transitions, which is used up in any case.

        Returns None for a duplicate. When it returns, the segment survives a kill of this process and may be
        acknowledged. Raises what `ReplayStore.insert` raises.
        """
        transitions = 0
        try:
            with self._lock:
                inserted = self._store.insert(segment, source)
                if inserted is not None:
                    transitions = inserted.transitions
                    self._sampler.on_insert(inserted)
            return inserted
        finally:
            self.limiter.insert(transitions, reserved)

    def sample(self, batches: int, batch_size: int, out: NStepBatch | None = None) -> tuple[NStepBatch, Sampled]:
        """Draw `batches * batch_size` n-step transitions at once and count them as samples.

        Consecutive slices of `batch_size` are minibatches, each a sample of the whole store. `out` takes the arrays, as
        in `assemble`. Raises ConflictError when there is nothing to sample.
        """
        size = batches * batch_size
        with self._lock:
            sampled = self._sampler.sample(size)
            batch = assemble(self._store, sampled.rows, self._n_step, self._discount, out)
        self.limiter.sample(size)
        return batch, sampled

    def newest_observations(self, size: int) -> NDArray[np.generic]:
        """A copy of up to `size` observations that were stored last, [B, *observation]; none of an empty store."""
        with self._lock:
            newest = []
            for record in reversed(self._store.live_segments()):
                if size <= 0:
                    break
                newest.append(self._store.observations[record.start : record.start + record.rows][:size].copy())
                size -= len(newest[-1])
            return np.concatenate(newest) if newest else self._store.observations[:0].copy()

    def update_priorities(self, sampled: Sampled, priorities: NDArray[np.float32]) -> None:
        """Set priorities float32[B] of the rows of `sampled`, usually absolute TD errors; see `Sampler.update`."""
        with self._lock:
            self._sampler.update(sampled, priorities)

    def state_dict(self) -> dict[str, int]:
        """What a learner checkpoint must keep; the transitions keep themselves."""
        return self.limiter.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint. Inserts since then are in the store, samples since then are forgotten by all."""
        self.limiter.load_state_dict({**state, "inserts": self.total_transitions})

    def flush(self) -> None:
        """Block until everything inserted before the call is on the disk; inserting and sampling go on meanwhile."""
        self._store.flush()

    def close(self) -> None:
        """Flush and release the files, after the last use by any thread."""
        with self._lock:
            self._store.close()
