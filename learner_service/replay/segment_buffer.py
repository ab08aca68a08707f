"""Stores segments behind one lock, for the intake: what a replay and a one-pass queue have in common."""

import logging
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.trajectory import EnvironmentSpec, Segment
from actorq.errors import UnavailableError
from learner_service.replay.moments import ObservationMoments
from learner_service.replay.n_step import gather_observations
from learner_service.replay.rate_limiter import RateLimiter
from learner_service.replay.storage.columns import VALID
from learner_service.replay.storage.directory import Record
from learner_service.replay.storage.mapped_files import Machine
from learner_service.replay.storage.sequences import LastSequences, SegmentSource
from learner_service.replay.storage.store import Inserted, ReplayStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Storage:
    """Counts of damaged, lost and not yet durable data.

    damaged_segments: skipped by this process because of their checksums.
    dropped_segments: not flushed before a power cut, and lost.
    unflushed_transitions: stored, but not yet certain to survive a power cut.
    """

    damaged_segments: int
    dropped_segments: int
    unflushed_transitions: int


class SegmentBuffer(ABC):
    """Stores segments. Thread-safe. The buffer owns the store and closes it.

    Before an insert call `limiter.try_reserve`. The call is outside the buffer's lock, so no side waits for the other
    while holding it.
    """

    def __init__(self, store: ReplayStore, limiter: RateLimiter, moments: ObservationMoments | None) -> None:
        """Connect the parts. The moments start with the transitions that the store already has.

        moments: None when no statistics of observations are needed.
        """
        self.limiter = limiter
        """Admission of inserts and samples."""
        self._store = store
        self._moments = moments
        self._lock = threading.Lock()

    @property
    def spec(self) -> EnvironmentSpec:
        """The spec of the environment."""
        return self._store.spec

    @property
    def directory(self) -> Path:
        """The folder of the store's files."""
        return self._store.path

    @property
    def machine(self) -> Machine:
        """The machine's functions that the store uses."""
        return self._store.machine

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
        """Transitions stored now. Does not wait for the lock."""
        return self._store.transitions

    @property
    def total_transitions(self) -> int:
        """Transitions ever inserted, over all restarts. Does not wait for the lock."""
        return self._store.total_transitions

    @property
    def sequences(self) -> LastSequences:
        """The last inserted sequence of each actor. Only the buffer advances it."""
        return self._store.sequences

    def storage(self) -> Storage:
        """The present `Storage`."""
        with self._lock:
            store = self._store
            unflushed = max(0, store.total_transitions - store.durability.durable.transitions)
            return Storage(store.segments.damaged, store.segments.dropped, unflushed)

    def durable_sequences(self) -> dict[tuple[bytes, int], int]:
        """(actor key, incarnation) -> last sequence number that survives a power cut; empty before the first flush."""
        return self._store.durability.durable.sequences or {}

    def skip(self, source: SegmentSource) -> None:
        """Count this segment and all before it as inserted, because both the replay and the actor have lost them."""
        with self._lock:
            self._store.sequences.advance(source)

    def reserve_ahead(self) -> bool:
        """Take disk space for the next inserts. Returns False when the disk is full."""
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
                    counted = self._take_in(segment, inserted)
                    self._count_missed()
            return inserted
        except UnavailableError:
            self.limiter.hold_inserts(True)
            raise
        finally:
            self.limiter.insert(counted, reserved)

    def newest_observations(self, size: int) -> NDArray[np.generic]:
        """Up to `size` of the newest observations, [B, *policy_observation]; B is 0 for an empty store."""
        with self._lock:
            store, newest = self._store, [np.empty(0, np.int64)]
            for record in reversed(tuple(store.segments.live)):
                if size <= 0:
                    break
                newest.append(self._valid_rows(record)[-size:])
                size -= len(newest[-1])
            return self._observations(np.concatenate(newest))

    def observation_moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Mean and standard deviation, float64[*observation], of all stored observations; None if none was counted."""
        with self._lock:
            moments = self._moments
            return None if moments is None or moments.count == 0 else (moments.mean, moments.std)

    def flush(self) -> None:
        """Block until everything inserted before the call is on the disk. Inserts and samples continue meanwhile.

        Raises OSError when the disk fails.
        """
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
        """Restore a checkpoint's state.

        The moments count the observations that were stored after the checkpoint, so each counts exactly once. They miss
        observations that were stored and then evicted or dropped after the checkpoint.
        Raises ValueError when the moments are of other observations.
        """

    @abstractmethod
    def _take_in(self, segment: Segment, inserted: Inserted) -> int:
        """Note a stored segment, under the lock. Returns the number to count as inserts at the limiter."""

    @abstractmethod
    def _forget(self, damaged: tuple[tuple[int, int], ...]) -> None:
        """Note row ranges of damaged segments that the store has removed, under the lock."""

    def _common_state(self) -> dict[str, Any]:
        """`stored` and `moments` for a checkpoint, under the lock."""
        moments = self._moments.state() if self._moments else None
        return {"stored": self._store.total_transitions, "moments": moments}

    def _load_common_state(self, state: dict[str, Any]) -> None:
        """Restore the moments, under the lock."""
        stored, have = state.get("stored", 0), self._store.total_transitions
        if stored > have:
            _log.warning(
                "the checkpoint was written after %d transitions, the replay has %d: the run continues with these",
                *(stored, have),
            )
        if self._moments and state.get("moments"):
            self._moments.load_state(state["moments"], have)
            self._count_missed()

    def _count_missed(self) -> None:
        """Add the observations of all segments that the moments have not counted yet."""
        if self._moments is None:
            return
        missed: list[Record] = []
        for record in reversed(self._store.segments.live):
            if record.cumulative_transitions <= self._moments.through:
                break
            missed.append(record)
        for record in reversed(missed):
            observations = self._store.observations[self._valid_rows(record)]
            self._moments.add(observations, record.cumulative_transitions)

    def _observations(self, rows: NDArray[np.int64]) -> NDArray[np.generic]:
        policy = self.spec.policy_observations
        observations: NDArray[np.generic] = np.empty((len(rows), *policy.shape), policy.dtype)
        gather_observations(self._store, rows, observations)
        return observations

    def _drop_damaged(self, rows: NDArray[np.int64]) -> bool:
        """Remove the damaged segments of `rows`. Returns False when there is none."""
        damaged = self._store.segments.check(rows)
        if damaged:
            self._forget(damaged)
        return bool(damaged)

    def _valid_rows(self, record: Record) -> NDArray[np.int64]:
        self._drop_damaged(np.arange(record.start, record.start + 1))
        rows: NDArray[np.int64] = np.flatnonzero(self._store.flags[record.start : record.stop] & VALID) + record.start
        return rows
