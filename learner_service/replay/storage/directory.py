"""The segment directory: the commit log of the replay ring.

A mapped file of two header pages and a ring of fixed-size records. A record has the place of a segment's rows, their
checksum, and their sender. It also has its own number (the global index) and a CRC-32. A segment is stored exactly if
its record is complete and its index is in [tail, head).

The header keeps the tail and the watermark, each in two copies with checksums. The head is not stored: it is one above
the highest index of all records. An unreadable record is therefore only a gap, and the segments after it stay.
"""

import struct
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learner_service.replay.storage.mapped_files import PAGE_BYTES, Machine, MappedFile, PairedSlot, sealed, unsealed
from learner_service.replay.storage.sequences import KEY_BYTES, SegmentSource

HEADER_BYTES = 2 * PAGE_BYTES
RECORD_BYTES = 96
_BODY = struct.Struct("<QQQIIQQ16sQQI")
# The first half of the sender's key in a record.
_SENDER_AT = struct.calcsize("<QQQIIQQ")
# Minimum number of records. Records of evicted segments detect duplicates until the table of sequences contains them.
_MIN_SLOTS = 4096

_TAIL_AT, _WATERMARK_AT, _CEILING_AT = 0, 512, 1024
_NOBODY = SegmentSource(bytes(KEY_BYTES), 0, 0)


@dataclass(frozen=True, slots=True)
class Record:
    """The place of a segment of `steps` x `environments`, its transitions, and all transitions up to its end.

    checksum: of its rows as written. rows: 0 for a damaged segment, which is skipped.
    """

    index: int
    start: int
    rows: int
    steps: int
    environments: int
    transitions: int
    cumulative_transitions: int
    source: SegmentSource
    checksum: int

    @property
    def stop(self) -> int:
        """The row after the segment's last."""
        return self.start + self.rows

    @property
    def step_rows(self) -> NDArray[np.int64]:
        """The rows of its steps and bootstrap observations, int64[T + 1, N]."""
        block = self.rows // self.environments
        first = self.start + block - self.steps - 1
        return first + np.arange(self.steps + 1)[:, None] + block * np.arange(self.environments)

    @property
    def known_source(self) -> bool:
        """Whether the record has the segment's sender. A damaged record has none."""
        return self.source.actor_key != _NOBODY.actor_key


@dataclass(frozen=True)
class Watermark:
    """Everything before global index `index`, `transitions` in all, was on the disk in the boot `boot_id`."""

    index: int
    transitions: int
    boot_id: str


class SegmentDirectory:
    """At most `segments` live records, oldest first, in a mapped ring. Not thread-safe: the store's lock covers it."""

    def __init__(self, path: Path, segments: int, create: bool, machine: Machine) -> None:
        """Map the file. For an existing file, `recovery` decides which records are live."""
        self.segments = segments
        self.slots = max(_MIN_SLOTS, segments)
        self.live: deque[Record] = deque()
        self.head = 0
        """Global index of the next record."""
        self.total_transitions = 0
        """Transitions of all records ever appended."""
        self.file = MappedFile(path, HEADER_BYTES + self.slots * RECORD_BYTES, create, machine)
        self._map = self.file.map
        self.file.allocate(len(self.file))
        self._tail = PairedSlot(self._map, _TAIL_AT, "Q")
        self._watermark = PairedSlot(self._map, _WATERMARK_AT, "QQ36s")
        self._ceiling = PairedSlot(self._map, _CEILING_AT, "d")

    @property
    def tail(self) -> int | None:
        """Global index below which nothing is live; None when the header is damaged."""
        return int(self._tail.value[0]) if self._tail.value else None

    @property
    def watermark(self) -> Watermark | None:
        """The segments that are certainly on the disk; None when the header is damaged."""
        if self._watermark.value is None:
            return None
        index, transitions, boot_id = self._watermark.value
        return Watermark(index, transitions, boot_id.rstrip(b"\0").decode("ascii", "replace"))

    @property
    def ceiling(self) -> float | None:
        """The largest valid priority; None if never set."""
        return float(self._ceiling.value[0]) if self._ceiling.value else None

    def raise_ceiling(self, priority: float) -> None:
        """Allow priorities up to this one. Call before such priorities are written."""
        if self.ceiling is None or priority > self.ceiling:
            self._ceiling.write(priority)

    @property
    def full(self) -> bool:
        """True when the oldest record must be evicted before the next one."""
        return len(self.live) >= self.segments or (bool(self.live) and self.head - self.live[0].index >= self.slots)

    @property
    def header_is_whole(self) -> bool:
        """Whether both copies of tail and watermark were readable when the file was opened."""
        return self._tail.copies == self._watermark.copies == 2

    def begin(self, boot_id: str, transitions: int) -> None:
        """Write the header of a new file. transitions: total of the run before this file."""
        self.total_transitions = transitions
        for _ in range(2):
            self._tail.write(0)
            self.write_watermark(Watermark(0, transitions, boot_id))

    def recover(self, live: list[Record], head: int, transitions: int) -> None:
        """Set the state that `recovery` found, and erase all records from `head` on."""
        self.live, self.head, self.total_transitions = deque(live), head, transitions
        tail = live[0].index if live else head
        if tail != self.tail:
            self._tail.write(tail)
        for slot in range(self.slots):
            at = HEADER_BYTES + slot * RECORD_BYTES
            (index,) = struct.unpack_from("<Q", self._map, at)
            if index >= head and any(self._map[at : at + RECORD_BYTES]):
                self._map[at : at + RECORD_BYTES] = bytes(RECORD_BYTES)

    def append(self, record: Record) -> None:
        """Commit `record`. Its index must be `head`, and the directory must not be full."""
        self._write(record)
        self.live.append(record)
        self.head = record.index + 1
        self.total_transitions = record.cumulative_transitions

    def evict_oldest(self) -> Record:
        """Remove the oldest live record, first on disk, then in memory."""
        self._tail.write(self.live[1].index if len(self.live) > 1 else self.head)
        return self.live.popleft()

    def give_up(self, index: int, record: Record | None) -> None:
        """Mark a damaged segment as skipped, permanently. Keeps its sender if `record` is given."""
        source = record.source if record else _NOBODY
        transitions = record.cumulative_transitions if record else 0
        self._write(Record(index, 0, 0, 0, 0, 0, transitions, source, 0))
        if record is not None and record in self.live:
            self.live.remove(record)

    def records(self) -> dict[int, Record]:
        """All readable records by index. Those before the tail are evicted."""
        found = (self._read(slot) for slot in range(self.slots))
        return {record.index: record for record in sorted((r for r in found if r), key=lambda record: record.index)}

    def senders(self, indexes: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Numbers that identify the actors of live segments, in the shape of `indexes`. Damaged records have 0."""
        # A short-lived view: a longer-lived view would prevent closing the file.
        keys = np.ndarray((self.slots,), np.dtype("<u8"), self._map, HEADER_BYTES + _SENDER_AT, (RECORD_BYTES,))
        return keys[indexes % self.slots]

    def write_watermark(self, watermark: Watermark) -> None:
        """Write the watermark. `file.sync` flushes it to the disk."""
        boot_id = watermark.boot_id.encode("ascii", "replace")[:36]
        self._watermark.write(watermark.index, watermark.transitions, boot_id)

    def touch(self) -> None:
        """Mark all pages as changed, after the disk has failed to write them."""
        for at in range(0, len(self._map), PAGE_BYTES):
            self._map[at] = self._map[at]

    def _write(self, record: Record) -> None:
        at = HEADER_BYTES + record.index % self.slots * RECORD_BYTES
        place = (record.index, record.start, record.rows, record.steps, record.environments)
        totals = (record.transitions, record.cumulative_transitions)
        body = _BODY.pack(*place, *totals, *record.source, record.checksum)
        self._map[at : at + RECORD_BYTES] = sealed(body).ljust(RECORD_BYTES, b"\0")

    def _read(self, slot: int) -> Record | None:
        values = unsealed(self._map, HEADER_BYTES + slot * RECORD_BYTES, _BODY)
        if values is None or values[0] % self.slots != slot:
            return None
        index, start, rows, steps, environments, transitions, total, *source, checksum = values
        return Record(index, start, rows, steps, environments, transitions, total, SegmentSource(*source), checksum)
