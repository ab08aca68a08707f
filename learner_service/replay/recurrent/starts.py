"""Knows where sequences may begin: at the first step of each environment of a segment."""

import numpy as np
from numpy.typing import NDArray

from learner_service.replay.storage.directory import Record
from learner_service.replay.storage.store import ReplayStore


class SegmentStarts:
    """The first rows of the stored segments, and the steps that follow them. The store's lock covers it.

    A start is ready when more than `burn_in` stored steps run on from it, so that at least one of them is trained.

    lengths: int32[capacity], steps of the segment that begins in a row; 0 for all other rows.
    """

    def __init__(self, store: ReplayStore, burn_in: int) -> None:
        self._store, self._burn_in = store, burn_in
        self.lengths = np.zeros(store.capacity, np.int32)

    def add(self, record: Record) -> list[NDArray[np.int64]]:
        """Add the newest segment. Returns the starts that are ready now and were not before, by segment."""
        self.lengths[record.step_rows[0]] = record.steps
        reach, ready = record.steps, []
        if reach > self._burn_in:
            ready.append(record.step_rows[0])
        before = self._store.segments.linked_before(record)
        while before is not None and reach - record.steps + before.steps <= self._burn_in:
            reach += before.steps
            if reach > self._burn_in:
                ready.append(before.step_rows[0])
            before = self._store.segments.linked_before(before)
        return ready

    def forget(self, start: int, stop: int) -> None:
        """Forget the starts among removed rows."""
        self.lengths[start:stop] = 0

    def followed(self, starts: NDArray[np.int64], steps: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The rows of the next `steps` steps from each start, int64[B, steps], and which of them exist, bool[B, steps].

        Rows past the last stored step are the row with its bootstrap observation.
        """
        lengths, next_rows, time = self.lengths, self._store.next_rows, np.arange(steps)
        rows = starts[:, None] + time
        first, begun, end = starts, np.zeros(len(starts), np.int64), lengths[starts].astype(np.int64)
        while True:
            bootstrap = first + (end - begun)
            following = next_rows[bootstrap - 1]
            continued = (end < steps) & (following != bootstrap) & (lengths[following] > 0)
            if not continued.any():
                break
            first = np.where(continued, following, first)
            begun = np.where(continued, end, begun)
            end = np.where(continued, end + lengths[following], end)
            later = continued[:, None] & (time >= begun[:, None])
            rows = np.where(later, (first - begun)[:, None] + time, rows)
        return np.minimum(rows, bootstrap[:, None], where=time >= begun[:, None], out=rows), time < end[:, None]
