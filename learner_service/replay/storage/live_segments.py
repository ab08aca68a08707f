"""The live segments of the ring: their position, eviction and row checks, and the links between them."""

import logging
from collections import deque

import numpy as np
from numpy.typing import NDArray

from learner_service.replay.storage.columns import FOLLOWS, Columns
from learner_service.replay.storage.directory import Record, SegmentDirectory
from learner_service.replay.storage.recovery import Recovered, is_whole
from learner_service.replay.storage.sequences import SegmentSource

_log = logging.getLogger(__name__)


class LiveSegments:
    """The segments that are stored now. Not thread-safe: the store's lock covers it.

    Only the store calls `place`, `make_room`, `commit` and `add_recovered`. Removed row ranges are [start, stop).

    transitions: live transitions. Those of the agents of one environment step count once.
    damaged: number of segments that this process skips because of their checksums.
    dropped: number of segments after the last flush that a power cut has destroyed.
    generations: int64[capacity], global index of the segment last committed to the row, to detect overwritten rows.
    next_rows: int64[capacity], the row of the same environment's next step. After a segment's last step it is the first
        step of the next segment, if that segment is stored, checked, and directly follows. Otherwise it is the
        bootstrap row, which is not a valid step. Kept in memory only, because the records' sources and the flag FOLLOWS
        determine it.
    cursor: the row after the newest segment.
    """

    def __init__(self, columns: Columns, directory: SegmentDirectory, frame_stack: int) -> None:
        self.transitions = self.damaged = self.dropped = self.cursor = 0
        capacity = len(columns.flags)
        self.generations = np.full(capacity, -1, np.int64)
        # A valid row always has a next row in its segment, so the last row of the ring is never valid. Its next row is
        # itself, which ends a window like any other invalid row.
        self.next_rows = np.minimum(np.arange(1, capacity + 1), capacity - 1)
        self._columns = columns
        self._directory = directory
        self._context = frame_stack - 1
        self._by_source: dict[SegmentSource, Record] = {}
        self._unchecked: dict[int, Record] = {}

    @property
    def live(self) -> deque[Record]:
        """The segments, oldest first. An insert, a drop or a `check` changes it."""
        return self._directory.live

    @property
    def checked_transitions(self) -> int:
        """Live transitions that this process has written or checked."""
        return self.transitions - sum(record.transitions for record in self._unchecked.values())

    def extent(self) -> tuple[int, int]:
        """(first, length): all live rows are among first, first + 1, ..., first + length - 1 modulo capacity."""
        if not self.live:
            return 0, 0
        first = self.live[0].start
        lap = 0 if first < self.cursor else len(self.generations)
        return first, lap + self.cursor - first

    def drop_oldest(self, transitions: int, keep: int) -> tuple[tuple[int, int], ...]:
        """Drop the oldest segments until `transitions` are gone. Keeps the last `keep`. Returns the dropped rows."""
        dropped: list[tuple[int, int]] = []
        least = max(keep, self.transitions - transitions)
        live = self.live
        while live and self.transitions > least and self.transitions - live[0].transitions >= keep:
            dropped.append(self._evict_oldest())
        return tuple(dropped)

    def check(self, rows: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
        """Check the segments of `rows`, once each. Removes the damaged ones, and returns their row ranges."""
        if not self._unchecked:
            return ()
        candidates = {int(index) for index in np.unique(self.generations[rows])} & self._unchecked.keys()
        records = [self._unchecked.pop(index) for index in sorted(candidates)]
        removed = []
        for record in records:
            if is_whole(record, self._columns):
                self._reconnect(record)
            else:
                removed.append(self._give_up(record))
        return tuple(removed)

    def place(self, rows: int) -> int:
        """The first row of a new segment of `rows` rows. A segment never wraps around the end of the ring."""
        return self.cursor if self.cursor + rows <= len(self.generations) else 0

    def make_room(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Evict the segments that a new segment in rows [start, stop) overwrites. Returns the evicted row ranges."""
        # Segments of the previous lap begin at or after the cursor. Eviction is strictly oldest first, so going back
        # to row 0 evicts the segments between the cursor and the end.
        live = self.live
        wraps = start < self.cursor
        evicted = []
        while live and (
            self._directory.full
            or (live[0].start < stop and start < live[0].stop)
            or (wraps and live[0].start >= self.cursor)
        ):
            evicted.append(self._evict_oldest())
        return tuple(evicted)

    def commit(self, record: Record, follows: bool) -> None:
        """Add a segment whose rows are written. follows: whether it directly follows its actor's previous segment."""
        self._directory.append(record)
        self._adopt(record)
        if follows:
            self._connect(record)
        self.cursor = record.stop

    def add_recovered(self, recovered: Recovered) -> None:
        """Add the segments that `recover` found in the directory."""
        self._unchecked = {record.index: record for record in recovered.unchecked}
        self.damaged, self.dropped = len(recovered.damaged), recovered.dropped
        for record in self.live:
            self._adopt(record)
        for record in self.live:
            if record.index not in self._unchecked:
                self._reconnect(record)
        self.cursor = self.live[-1].stop if self.live else 0

    def linked_before(self, record: Record) -> Record | None:
        """The segment whose last steps link to the first steps of this one; None when there is none."""
        before = self._before(record)
        if before is None or self.next_rows[before.step_rows[-2, 0]] != record.step_rows[0, 0]:
            return None
        return before

    def _adopt(self, record: Record) -> None:
        self.generations[record.start : record.stop] = record.index
        self.transitions += record.transitions
        self._by_source[record.source] = record

    def _evict_oldest(self) -> tuple[int, int]:
        record = self._directory.evict_oldest()
        self._unchecked.pop(record.index, None)
        return self._clear(record)

    def _give_up(self, record: Record) -> tuple[int, int]:
        self._directory.give_up(record.index, record)
        if (before := self._before(record)) is not None:
            self._disconnect(before)
        self.damaged += 1
        _log.warning("replay: segment %d is damaged and skipped; %d are kept", record.index, len(self.live))
        return self._clear(record)

    def _clear(self, record: Record) -> tuple[int, int]:
        self._by_source.pop(record.source, None)
        self._disconnect(record)
        self._columns.flags[record.start : record.stop] = 0
        self._columns.priorities[record.start : record.stop] = 0
        self.transitions -= record.transitions
        return record.start, record.stop

    def _reconnect(self, record: Record) -> None:
        """`_connect` a segment that an earlier process has written, if the flag in its rows says that it follows."""
        if (self._columns.flags[record.start : record.stop] & np.uint8(FOLLOWS)).any():
            self._connect(record)

    def _connect(self, record: Record) -> None:
        """Link the previous segment to this segment, which directly follows and whose rows are checked."""
        before = self._before(record)
        if before is None or before.environments != record.environments:
            return
        observations, stride = self._columns.observations, record.rows // record.environments
        first = slice(record.start + self._context, record.stop, stride)
        stride = before.rows // before.environments
        last, bootstrap = (slice(before.start + stride - back, before.stop, stride) for back in (2, 1))
        # An actor of other software may set `follows` wrongly.
        if np.array_equal(observations[bootstrap], observations[first]):
            self.next_rows[last] = np.arange(first.start, record.stop, first.step)

    def _disconnect(self, record: Record) -> None:
        self.next_rows[record.start : record.stop] = np.arange(record.start + 1, record.stop + 1)
        self.next_rows[-1] = len(self.next_rows) - 1

    def _before(self, record: Record) -> Record | None:
        """The live segment with its actor's previous number; None when there is none."""
        key, incarnation, sequence = record.source
        return self._by_source.get(SegmentSource(key, incarnation, sequence - 1))
