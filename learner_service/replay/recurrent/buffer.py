"""The replay of policies with memory: samples sequences instead of single transitions."""

import numpy as np

from actorq.errors import ConflictError
from learner_service.batch import Batch
from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.delayed import DelayedReturns
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import Allocate, Returns
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.recurrent.sampler import SequenceSampler
from learner_service.replay.recurrent.sequences import SequenceShape, assemble_sequences, empty_sequences
from learner_service.replay.reward_scale import RewardScale
from learner_service.replay.samplers import Sampled
from learner_service.replay.storage.store import ReplayStore


class SequenceReplay(ReplayBuffer):
    """A `ReplayBuffer` whose batches consist of sequences; see `assemble_sequences`. Its limiter counts trained steps.

    shape: of the sequences. Its tail fits the longest returns.
    """

    def __init__(
        self,
        store: ReplayStore,
        sampler: SequenceSampler,
        limiter: RateLimiter,
        returns: Returns | DelayedReturns,
        shape: SequenceShape,
        moments: ObservationMoments | None = None,
        reward_scale: RewardScale | None = None,
    ) -> None:
        super().__init__(store, sampler, limiter, returns, moments, reward_scale=reward_scale)
        self.shape = shape
        self._starts = sampler.starts

    def empty_batch(self, size: int, allocate: Allocate = np.empty) -> Batch:
        """Columns with room for every batch of `size` sequences."""
        windows = self._returns.longest.windows
        return empty_sequences(self.spec, size, self.shape, windows, self._store.batched, allocate)

    def draw(self, size: int, out: Batch | None = None) -> tuple[Batch, Sampled]:
        """Draw `size` sequences, into `out` of as many. Raises ConflictError when no sequence has a trained step.

        In that case no further sample is allowed before the next insert.
        """
        batch = self.empty_batch(size) if out is None else out
        with self._lock:
            try:
                sampled = self._sampler.sample(size)
            except ConflictError:
                self.limiter.await_inserts(self._store.total_transitions + 1)
                raise
            returns = self._returns.at(self._store.total_transitions)
            assemble_sequences(self._store, self._starts, sampled.rows, self.shape, returns, batch)
            self._scale(batch)
            return batch, sampled
