"""Leads from each row to the next step of the same environment, also from one segment of its actor to the next.

In memory only. The sources of the records and the flag FOLLOWS tell it again when a store is opened.
"""

import numpy as np

from learner_service.replay.storage.columns import FOLLOWS, Columns
from learner_service.replay.storage.directory import Record
from learner_service.replay.storage.sequences import SegmentSource


class NextRows:
    """The row after each row of the ring. Not thread-safe: the store's lock covers it.

    rows: int64[capacity]. After a segment's last step it is the first step of the next segment, if that one is stored,
        checked, and directly follows. Otherwise it is the bootstrap row, which is no valid step.
    """

    def __init__(self, columns: Columns, frame_stack: int) -> None:
        # A valid row always has a next row in its segment, so the last row of the ring is never valid. It leads to
        # itself, and ends a window like any other invalid row.
        self.rows = np.minimum(np.arange(1, len(columns.flags) + 1), len(columns.flags) - 1)
        self._columns = columns
        self._context = frame_stack - 1
        self._live: dict[SegmentSource, Record] = {}

    def add(self, record: Record) -> None:
        """Record a live segment."""
        self._live[record.source] = record

    def evict(self, record: Record) -> None:
        """Forget the oldest live segment. No row leads out of it any more; none leads into it."""
        self._live.pop(record.source, None)
        self._disconnect(record)

    def give_up(self, record: Record) -> None:
        """Forget any live segment. No row leads out of it or into it any more."""
        if (before := self._before(record)) is not None:
            self._disconnect(before)
        self.evict(record)

    def reconnect(self, record: Record) -> None:
        """`connect` a segment that an earlier process has written, if its rows tell that it follows."""
        if (self._columns.flags[record.start : record.stop] & np.uint8(FOLLOWS)).any():
            self.connect(record)

    def connect(self, record: Record) -> None:
        """Lead from the segment before to this one, which directly follows and whose rows are checked."""
        before = self._before(record)
        if before is None or before.environments != record.environments:
            return
        observations, stride = self._columns.observations, record.rows // record.environments
        first = slice(record.start + self._context, record.stop, stride)
        stride = before.rows // before.environments
        last, bootstrap = (slice(before.start + stride - back, before.stop, stride) for back in (2, 1))
        # An actor of other software may be wrong about what follows.
        if np.array_equal(observations[bootstrap], observations[first]):
            self.rows[last] = np.arange(first.start, record.stop, first.step)

    def _disconnect(self, record: Record) -> None:
        self.rows[record.start : record.stop] = np.arange(record.start + 1, record.stop + 1)
        self.rows[-1] = len(self.rows) - 1

    def _before(self, record: Record) -> Record | None:
        """The live segment that its actor numbered before this one; None when there is none."""
        key, incarnation, sequence = record.source
        return self._live.get(SegmentSource(key, incarnation, sequence - 1))
