"""Batches from stored data: half of each batch beside the run's own data (RLPD), or all of it without actors."""

from pathlib import Path
from typing import Any

import numpy as np

from actorq.domain.trajectory import Segment
from actorq.errors import ConflictError, UserError
from learner_service.batch import Batch
from learner_service.replay.buffer import ReplayBuffer
from learner_service.replay.delayed import DelayedReturns
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import Returns, assemble, empty_batch
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.reward_scale import RewardScale
from learner_service.replay.samplers import Sampled, UniformSampler
from learner_service.replay.storage.sequences import SegmentSource
from learner_service.replay.storage.store import Inserted
from learner_service.replay.stored.read_only import ReadOnlyStore

# The generation of drawn rows that are not of the run's own store. No row of the store has it.
_ELSEWHERE = -2


class StoredRows:
    """Draws transitions of a data set uniformly. Not thread-safe."""

    def __init__(self, store: ReadOnlyStore, rng: np.random.Generator) -> None:
        self._store = store
        self._sampler = UniformSampler(store, rng)

    def draw(self, size: int, returns: Returns, out: Batch) -> Batch:
        """Draw `size` n-step transitions into `out`. Raises UserError when every segment is damaged."""
        try:
            rows = self._sampler.sample(size).rows
            while self._store.segments.check(rows):
                rows = self._sampler.sample(size).rows
        except ConflictError:
            raise _all_damaged(self._store) from None
        return assemble(self._store, rows, returns, out)

    def empty_batch(self, size: int, returns: Returns) -> Batch:
        """Columns with room for `size` transitions."""
        return empty_batch(self._store.spec, size, returns)

    def close(self) -> None:
        """Close the files."""
        self._store.close()


class MixedReplay(ReplayBuffer):
    """A replay whose minibatches contain rows of a data set (RLPD: Ball et al. 2023, arXiv 2302.02948, sec. 4.1).

    Each minibatch begins with rows of the run's own store, drawn by the run's sampler. Rows of the data set follow,
    drawn uniformly with weight 1. The limiter counts whole minibatches, so the number of updates for each environment
    step is the same as without a data set. Rows of the data set get no priorities.

    stored: the data set. minibatch: transitions of a minibatch; every draw is a multiple. rows: of these, from the data
        set.
    """

    def __init__(self, *given: Any, stored: StoredRows, minibatch: int, rows: int) -> None:
        super().__init__(*given)
        self._stored, self._minibatch, self._stored_rows = stored, minibatch, rows
        # The two parts of a batch, before they are joined.
        self._parts: tuple[Batch, Batch] | None = None

    def draw(self, size: int, out: Batch | None = None) -> tuple[Batch, Sampled]:
        """As in `ReplayBuffer`. Raises UserError when every segment of the data set is damaged."""
        minibatches, own = size // self._minibatch, self._minibatch - self._stored_rows
        first, second = self._parts_for(minibatches)
        found, sampled = super().draw(minibatches * own, first)
        other = self._stored.draw(minibatches * self._stored_rows, self._returns.at(self.progress), second)
        if self._reward_scale is not None:
            with self._lock:
                other.returns[:] /= np.float32(self._reward_scale.divisor)
        batch = self.empty_batch(size) if out is None else out
        batch = Batch(**{name: batch.columns[name] for name in found.columns})
        for name, column in batch.columns.items():
            joined = column.reshape(minibatches, self._minibatch, *column.shape[1:])
            joined[:, :own] = found.columns[name].reshape(minibatches, own, *column.shape[1:])
            joined[:, own:] = other.columns[name].reshape(minibatches, self._stored_rows, *column.shape[1:])
        return batch, self._as_drawn(sampled, minibatches, own)

    def _as_drawn(self, sampled: Sampled, minibatches: int, own: int) -> Sampled:
        """The rows of whole minibatches. Rows of the data set belong to no segment of the store."""
        rows = np.zeros((minibatches, self._minibatch), np.int64)
        weights = np.ones((minibatches, self._minibatch), np.float32)
        generations = np.full((minibatches, self._minibatch), _ELSEWHERE, np.int64)
        rows[:, :own] = sampled.rows.reshape(minibatches, own)
        weights[:, :own] = sampled.weights.reshape(minibatches, own)
        generations[:, :own] = sampled.generations.reshape(minibatches, own)
        return Sampled(rows.ravel(), weights.ravel(), generations.ravel())

    def _parts_for(self, minibatches: int) -> tuple[Batch, Batch]:
        own, stored = minibatches * (self._minibatch - self._stored_rows), minibatches * self._stored_rows
        if self._parts is None or len(self._parts[1].returns) != stored:
            self._parts = self.empty_batch(own), self._stored.empty_batch(stored, self._returns.longest)
        return self._parts

    def close(self) -> None:
        """As in `ReplayBuffer`, and close the data set."""
        super().close()
        self._stored.close()


class UpdateLimiter(RateLimiter):
    """The limiter of a run without actors: allows sampling until `most` samples are drawn, and no insert."""

    def __init__(self, most: int, clock: Any) -> None:
        super().__init__(1.0, 0, 4.0, clock)
        self._most = most

    @property
    def missing(self) -> int:
        """Nothing: all transitions are stored."""
        return 0

    def _sample_allowed(self, n: int) -> bool:
        return self.samples < self._most

    def _insert_allowed(self, n: int) -> bool:
        return False


class OfflineReplay(ReplayBuffer):
    """The replay of a run without actors: the transitions of a data set, which never change.

    They are not transitions of the run, so its total is 0. Its schedules follow the updates.
    """

    def __init__(
        self,
        store: ReadOnlyStore,
        rng: np.random.Generator,
        limiter: UpdateLimiter,
        returns: Returns | DelayedReturns,
        minibatch: int,
        directory: Path,
        moments: ObservationMoments | None = None,
        reward_scale: RewardScale | None = None,
    ) -> None:
        """minibatch: transitions of an update. directory: of the run."""
        super().__init__(store, UniformSampler(store, rng), limiter, returns, moments, None, reward_scale)
        self._minibatch = minibatch
        self.directory = directory

    @property
    def total_transitions(self) -> int:
        """Transitions of the run: none."""
        return 0

    @property
    def progress(self) -> int:
        """The updates of the drawn batches."""
        return self.limiter.samples // self._minibatch

    def draw(self, size: int, out: Batch | None = None) -> tuple[Batch, Sampled]:
        """As in `ReplayBuffer`. Raises UserError when every segment of the data set is damaged."""
        try:
            return super().draw(size, out)
        except ConflictError:
            raise _all_damaged(self._store) from None

    def insert(self, segment: Segment, source: SegmentSource, reserved: int) -> Inserted | None:
        """Raises ConflictError, because the data never change."""
        self.limiter.release(reserved)
        raise ConflictError("the run is offline: it takes no transitions of actors")

    def reserve_ahead(self) -> bool:
        """Nothing is written."""
        return True

    def flush(self) -> None:
        """Nothing is written."""


def _all_damaged(store: Any) -> UserError:
    return UserError(f"dataset: every segment in {store.path} is damaged; import the data again")
