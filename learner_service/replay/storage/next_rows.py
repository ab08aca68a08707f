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
        self.rows = np.arange(1, len(columns.flags) + 1)
        self._columns = columns
        self._context = frame_stack - 1
        self._by_source: dict[SegmentSource, Record] = {}

    def add(self, record: Record) -> None:
        """Note a live segment."""
        self._by_source[record.source] = record

    def remove(self, record: Record) -> None:
        """Forget a segment that is no longer live. No row leads out of it or into it any more."""
        self._by_source.pop(record.source, None)
        for each in (record, self._before(record)):
            if each is not None:
                self.rows[each.start : each.stop] = np.arange(each.start + 1, each.stop + 1)

    def connect(self, record: Record) -> None:
        """Lead from the segment before to this one, whose rows are checked, where it directly follows."""
        before = self._before(record)
        if before is None or before.environments != record.environments:
            return
        columns, stride = self._columns, record.rows // record.environments
        first = slice(record.start + self._context, record.stop, stride)
        stride = before.rows // before.environments
        last, bootstrap = (slice(before.start + stride - back, before.stop, stride) for back in (2, 1))
        follows = (columns.flags[first] & np.uint8(FOLLOWS)).any()
        # An actor of other software may be wrong about what follows.
        if follows and np.array_equal(columns.observations[bootstrap], columns.observations[first]):
            self.rows[last] = np.arange(*first.indices(record.stop))

    def _before(self, record: Record) -> Record | None:
        """The live segment that its actor numbered before this one; None when there is none."""
        source = record.source
        if source.sequence == 0:
            return None
        return self._by_source.get(SegmentSource(source.actor_key, source.incarnation, source.sequence - 1))
