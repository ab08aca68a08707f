"""Stores segments behind one lock, for the intake: the common base of a replay and a one-pass queue."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from actorq.domain.leaves import views
from actorq.domain.status import StorageStatus
from actorq.domain.trajectory import Segment
from actorq.errors import UnavailableError
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import gather_observations
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.directory import Record
from learner_service.replay.storage.sequences import SegmentSource
from learner_service.replay.storage.space import DiskWatch
from learner_service.replay.storage.store import Inserted, ReplayStore

T = TypeVar("T")

_log = logging.getLogger(__name__)


class SegmentBuffer(ABC):
    """Stores segments. Thread-safe. The buffer owns the store and closes it.

    Before an insert call `limiter.try_reserve`. The limiter is outside the buffer's lock, so neither side waits while
    it holds the lock.

    limiter: admits inserts and samples. moments: None when no statistics of observations are needed.
    spec: of the environment. directory: of the store's files. machine: its functions that the store uses.
    capacity: rows of the store. nbytes: bytes of its files when full.
    sequences: the last inserted sequence of each actor. Only the buffer advances it.
    """

    def __init__(self, store: ReplayStore, limiter: RateLimiter, moments: ObservationMoments | None) -> None:
        self.limiter = limiter
        self.spec, self.directory, self.machine = store.spec, store.path, store.machine
        self.capacity, self.nbytes, self.sequences = store.capacity, store.nbytes, store.sequences
        self._store = store
        self._moments = moments
        self._lock = threading.Lock()

    @property
    def transitions(self) -> int:
        """Transitions stored now. Does not wait for the lock."""
        return self._store.transitions

    @property
    def total_transitions(self) -> int:
        """Transitions ever inserted, over all restarts. Does not wait for the lock.

        They are environment steps: the transitions of all agents in a step count once.
        """
        return self._store.total_transitions

    def storage(self, disk: DiskWatch, lost_segments: int) -> StorageStatus:
        """The present state. disk: of the store's files. lost_segments: those that the actors do not have either."""
        with self._lock:
            store = self._store
            return StorageStatus(
                disk_free_bytes=disk.free_bytes,
                disk_low=disk.low,
                damaged_segments=store.segments.damaged,
                dropped_segments=store.segments.dropped,
                lost_segments=lost_segments,
                unflushed_transitions=max(0, store.total_transitions - store.durability.durable.transitions),
            )

    def durable_sequences(self) -> dict[tuple[bytes, int], int]:
        """(actor key, incarnation) -> last sequence number that survives a power cut; empty before the first flush."""
        return self._store.durability.durable.sequences

    def skip(self, source: SegmentSource) -> None:
        """Count this segment and all before it as inserted, because both the replay and the actor have lost them."""
        with self._lock:
            self._store.sequences.advance(source)

    def reserve_ahead(self) -> bool:
        """Reserve disk space for the next inserts. Returns False when the disk is full."""
        with self._lock:
            return self._store.reserve_ahead()

    def insert(self, segment: Segment, source: SegmentSource, reserved: int) -> Inserted | None:
        """Store `segment` under a reservation of `reserved` environment steps. The reservation is used up in any case.

        Returns None for a duplicate. After the return the segment survives a kill of this process and may be
        acknowledged. Raises the errors of `ReplayStore.insert`. When the disk is full, no more inserts are admitted.
        """
        counted = 0
        try:
            with self._lock:
                inserted = self._store.insert(segment, source)
                if inserted is not None:
                    counted = self._on_insert(segment, inserted)
            return inserted
        except UnavailableError:
            self.limiter.hold_inserts(True)
            raise
        finally:
            self.limiter.insert(counted, reserved)

    def newest_observations(self, size: int) -> NDArray[np.generic]:
        """Up to `size` of the newest observations, [B, *policy_observation]; B is 0 for an empty store."""
        with self._lock:
            return self._observations(self._outermost_rows(size, newest=True))

    def newest_segments(self, most: int, steps: int, read: Callable[[ReplayStore, list[Record]], T]) -> T:
        """The result of `read` for the newest segments, under the lock.

        They are at most `most` segments, and only as many as have `steps` environment steps together.
        """
        with self._lock:
            newest: list[Record] = []
            for record in islice(reversed(tuple(self._store.segments.live)), most):
                if steps <= 0:
                    break
                if not self._drop_damaged(np.array([record.start])):
                    newest.append(record)
                    steps -= record.steps * record.environments
            return read(self._store, newest)

    def observation_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Mean and standard deviation, float64[*observation], of all counted observations; None if there is none."""
        with self._lock:
            moments = self._moments
            return None if moments is None or moments.count == 0 else (moments.mean, moments.std)

    def flush(self) -> None:
        """Block until all earlier inserts are on the disk; inserts and samples continue meanwhile. Raises OSError."""
        with self._lock:
            mark = self._store.durability.mark()
        self._store.durability.sync(mark)

    def close(self) -> None:
        """Flush and release the files, after the last use by any thread."""
        with self._lock:
            self._store.close()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The state for a learner's checkpoint, as JSON values, without the transitions.

        Call `flush` before you write the checkpoint. The `stored` transitions are then on the disk before it.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint's state. Raises ValueError when the moments are of other observations."""

    def begin_from(self, state: dict[str, Any]) -> None:
        """Begin a run with the statistics in another run's state. Counts and transitions stay those of this run."""
        with self._lock:
            if self._moments and state.get("moments"):
                self._moments.load_state(state["moments"], 0)

    @abstractmethod
    def _on_insert(self, segment: Segment, inserted: Inserted) -> int:
        """Record a stored segment, under the lock. Returns the number to count as inserts at the limiter."""

    @abstractmethod
    def _forget(self, damaged: tuple[tuple[int, int], ...]) -> None:
        """Record row ranges of damaged segments that the store has removed, under the lock."""

    def _common_state(self) -> dict[str, Any]:
        """`stored`, `moments` and `starved_s` for a checkpoint, under the lock."""
        moments, starved_s = self._moments.state() if self._moments else None, self.limiter.starved_seconds
        return {"stored": self._store.total_transitions, "moments": moments, "starved_s": starved_s}

    def _load_common_state(self, state: dict[str, Any]) -> None:
        """Restore the moments and the starved seconds, under the lock."""
        # Older checkpoints do not have these values.
        self.limiter.starved_before = state.get("starved_s", 0.0)
        stored, have = state.get("stored", 0), self._store.total_transitions
        if stored > have:
            _log.warning(
                "the checkpoint was written after %d transitions, the replay has %d: the run continues with these",
                *(stored, have),
            )
        if self._moments and state.get("moments"):
            self._moments.load_state(state["moments"], have)

    def _count(self, records: Iterable[Record]) -> None:
        """Add the observations of segments, oldest first, to the moments; once each."""
        for record in records:
            if self._moments is not None and record.cumulative_transitions > self._moments.through:
                observations = self._store.observations[self._valid_rows(record)]
                if self.spec.leaves:
                    observations = self._numbers(observations.view(np.uint8))
                self._moments.add(observations, record.cumulative_transitions)

    def _numbers(self, observations: NDArray[np.uint8]) -> NDArray[Any]:
        """All numbers of observations of several arrays, [B, components]."""
        found = views(self.spec.leaves, observations)
        numbers = [found[leaf.name] for leaf in self.spec.leaves if leaf.kind == "numbers"]
        return numbers[0] if len(numbers) == 1 else np.concatenate(numbers, axis=-1)

    def _observations(self, rows: NDArray[np.int64]) -> NDArray[np.generic]:
        policy = self.spec.policy_observations
        observations: NDArray[np.generic] = np.empty((len(rows), *policy.shape), policy.dtype)
        gather_observations(self._store, rows, observations)
        return observations

    def _drop_damaged(self, rows: NDArray[np.int64]) -> bool:
        """Remove the damaged segments of `rows`. Returns False when there is none."""
        if damaged := self._store.segments.check(rows):
            self._forget(damaged)
        return bool(damaged)

    def _outermost_rows(self, size: int, newest: bool) -> NDArray[np.int64]:
        """Up to `size` valid rows, int64[B], of the newest or of the oldest segments, one segment after the other."""
        rows, live = [np.empty(0, np.int64)], tuple(self._store.segments.live)
        for record in reversed(live) if newest else live:
            if size <= 0:
                break
            valid = self._valid_rows(record)
            rows.append(valid[-size:] if newest else valid[:size])
            size -= len(rows[-1])
        return np.concatenate(rows)

    def _valid_rows(self, record: Record) -> NDArray[np.int64]:
        self._drop_damaged(np.arange(record.start, record.start + 1))
        return np.flatnonzero(self._store.flags[record.start : record.stop] & VALID) + record.start
