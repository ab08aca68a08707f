"""Decides which segments are kept when a replay's files are opened again.

In the same boot of the machine, the page cache has everything that was written before the process ended. After a
reboot, everything before the watermark is on the disk. Later pages reached the disk in any order. The recovery
therefore keeps the longest sequence of whole segments after the watermark. It drops the rest, which the actors can send
again.

A segment is whole when its record and its rows agree with their checksums. A damaged segment is skipped for good, and
the segments after it stay. A segment whose rows a newer segment has overwritten was evicted.
"""

import logging
from dataclasses import dataclass

import numpy as np

from learner_service.replay.storage.columns import Columns
from learner_service.replay.storage.directory import Record, SegmentDirectory

_log = logging.getLogger(__name__)

# Bytes of the newest segments that are checked at once, at about 3 GB/s from the page cache. Older segments are checked
# when they are first drawn.
CHECKED_AT_ONCE_BYTES = 2**30


@dataclass(frozen=True)
class Recovered:
    """The result of a recovery.

    records: all readable records before the head, by index, also of evicted segments.
    unchecked: live segments whose rows are not yet compared with their checksums.
    damaged: indexes of the damaged segments, which are skipped, in order.
    dropped: number of segments after the watermark that a power cut has destroyed.
    rebooted: whether a reboot has lost the page cache of the last process.
    """

    records: dict[int, Record]
    unchecked: tuple[Record, ...]
    damaged: tuple[int, ...]
    dropped: int
    rebooted: bool


def recover(directory: SegmentDirectory, columns: Columns, boot_id: str, checked_at_once: int) -> Recovered:
    """Find the live segments of `directory`'s file, and clear the flags of all other rows."""
    records, watermark, tail = directory.records(), directory.watermark, directory.tail
    rebooted = watermark is not None and (not boot_id or watermark.boot_id != boot_id)
    head = max([index + 1 for index in records] + [tail or 0, watermark.index if watermark else 0])
    ahead = head
    if rebooted and watermark is not None:
        head = _whole_until(records, watermark.index, head, tail or 0, columns)
    dropped = sum(index >= head for index in records)
    records = {index: record for index, record in records.items() if index < head}
    first = max(tail or 0, head - directory.slots, 0)
    live, damaged = _not_overwritten(records, first, head, len(columns.flags), tail is None or rebooted)
    bad, unchecked = _check(live, columns, checked_at_once)
    while live and live[0].index in bad and (rebooted or not columns.flags[live[0].start : live[0].stop].any()):
        # A kill interrupted the eviction of the oldest segments, and only a part of it reached the files.
        bad.discard(live.pop(0).index)
    transitions = max([record.cumulative_transitions for record in records.values()], default=0)
    if watermark is not None and watermark.index >= max(records, default=-1) + 1:
        transitions = max(transitions, watermark.transitions)
    directory.recover([record for record in live if record.index not in bad], head, transitions)
    for index in (*damaged, *bad):
        directory.give_up(index, records.get(index))
    _clear_others(directory, columns)
    if rebooted and watermark is not None and ahead > watermark.index:
        _log.warning(
            "replay: the machine has restarted: of %d segments after the last flush, %d are whole and kept, %d dropped",
            *(ahead - watermark.index, head - watermark.index, dropped),
        )
    if lost := len(damaged) + len(bad):
        _log.warning("replay: %d segments are damaged and skipped; %d are kept", lost, len(directory.live))
    return Recovered(records, tuple(unchecked), tuple(sorted({*damaged, *bad})), dropped, rebooted)


def _whole_until(records: dict[int, Record], start: int, head: int, tail: int, columns: Columns) -> int:
    """The index after the longest sequence of whole segments from `start`. Evicted segments count as whole."""
    for index in range(start, head):
        record = records.get(index)
        if record is None or (index >= tail and not is_whole(record, columns)):
            return index
    return head


def _not_overwritten(
    records: dict[int, Record], first: int, head: int, capacity: int, tail_is_old: bool
) -> tuple[list[Record], list[int]]:
    """The segments of [first, head) that no newer segment overlaps, and the indexes without a readable record.

    tail_is_old: segments before the first readable record may be evicted, and do not count as damaged.
    """
    covered = np.zeros(capacity, np.bool_)
    live: list[Record] = []
    holes: list[int] = []
    for index in reversed(range(first, head)):
        record = records.get(index)
        if record is None:
            holes.append(index)
        elif record.rows:
            if covered[record.start : record.stop].any():
                break
            covered[record.start : record.stop] = True
            live.append(record)
    live.reverse()
    if tail_is_old:
        oldest = live[0].index if live else head
        holes = [index for index in holes if index > oldest]
    return live, holes


def _check(live: list[Record], columns: Columns, budget: int) -> tuple[set[int], list[Record]]:
    """Check the newest segments, up to `budget` bytes.

    Returns the indexes of damaged segments, and the unchecked segments.
    """
    bad: set[int] = set()
    row_nbytes = columns.row_nbytes
    for position in reversed(range(len(live))):
        record = live[position]
        budget -= record.rows * row_nbytes
        if budget < 0:
            return bad, live[: position + 1]
        if not is_whole(record, columns):
            bad.add(record.index)
    return bad, []


def is_whole(record: Record, columns: Columns) -> bool:
    """Whether the rows of a segment agree with its checksum. A skipped segment counts as whole."""
    return record.rows == 0 or columns.checksum(record.start, record.stop) == record.checksum


def _clear_others(directory: SegmentDirectory, columns: Columns) -> None:
    covered = np.zeros(len(columns.flags), np.bool_)
    for record in directory.live:
        covered[record.start : record.stop] = True
    leftover = np.flatnonzero(~covered & (columns.flags != 0))
    columns.flags[leftover] = 0
    columns.priorities[leftover] = 0
