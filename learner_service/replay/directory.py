"""The segment directory: the commit log of the replay ring.

A mapped file of one header page and a ring of fixed-size records. A record says where a segment's rows are and who
sent them; it carries its own number (the global index) and a CRC-32. A segment is stored if and only if its record is
complete and its index is in [tail, head). The tail is one aligned 64-bit word in the header, so that it is stored by
one instruction; the head is not stored at all: it is where the consecutive records end.
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from learner_service.replay.files import map_file
from learner_service.replay.sequences import SegmentSource

_HEADER_BYTES = 4096
_RECORD_BYTES = 96
_BODY = struct.Struct("<QQQIIQQ16sQQ")
_CRC = struct.Struct("<I")
# Part of every CRC, so that a page of zeros is not a record.
_CRC_SEED = 0x41515250


@dataclass(frozen=True, slots=True)
class Record:
    """Where a segment of `steps` x `environments` lies, how many transitions it has, and how many came up to it."""

    index: int
    start: int
    rows: int
    steps: int
    environments: int
    transitions: int
    cumulative_transitions: int
    source: SegmentSource

    @property
    def stop(self) -> int:
        """The row after the segment's last."""
        return self.start + self.rows


class SegmentDirectory:
    """Live records, oldest first, over a mapped ring of `slots` records. Not thread-safe; the store's owner locks."""

    def __init__(self, path: Path, slots: int, create: bool) -> None:
        """Map the file and recover: live records, the last record ever written, and nothing beyond it."""
        self._map = map_file(path, _HEADER_BYTES + slots * _RECORD_BYTES, create)
        self._tail_word = np.frombuffer(self._map, np.uint64, count=1)
        self.slots = slots
        self.live: deque[Record] = deque()
        self.last: Record | None = None
        # Merely reading the holes of a new file would allocate them on some file systems (tmpfs).
        if not create:
            self._recover()

    @property
    def tail(self) -> int:
        """Global index of the oldest live record."""
        return int(self._tail_word[0])

    @property
    def head(self) -> int:
        """Global index that the next record gets."""
        return self.tail + len(self.live)

    @property
    def full(self) -> bool:
        """True when the next record would overwrite a live one."""
        return len(self.live) >= self.slots

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return len(self._map)

    def append(self, record: Record) -> None:
        """Commit `record`, whose index must be `head`. The caller has evicted the oldest if the ring was full."""
        if record.index != self.head or self.full:
            raise ValueError(f"record {record.index} cannot follow: head {self.head}, full {self.full}")
        body = _pack(record)
        offset = self._offset(record.index)
        self._map[offset : offset + _RECORD_BYTES] = body
        self.live.append(record)
        self.last = record

    def evict_oldest(self) -> Record:
        """Take the oldest record out of the live ones, first on disk, then here."""
        self._tail_word[0] = self.tail + 1
        return self.live.popleft()

    def history(self) -> Iterator[Record]:
        """All records that can still be read, oldest first; those before the tail are evicted but remembered."""
        first = max(0, self.head - self.slots)
        for index in range(first, self.head):
            record = self._read(index)
            if record is not None:
                yield record

    def flush(self) -> None:
        """Block until the records are on the disk."""
        self._map.flush()

    def _recover(self) -> None:
        tail = self.tail
        self.last = self._read(tail - 1)
        while len(self.live) < self.slots and (record := self._read(tail + len(self.live))) is not None:
            self.live.append(record)
            self.last = record
        # After a power failure pages may have reached the disk out of order and left a gap. Records beyond it would
        # join the log again once the gap is filled with new ones, when their rows are long overwritten.
        head = self.head
        for slot in range(self.slots):
            offset = _HEADER_BYTES + slot * _RECORD_BYTES
            (index,) = struct.unpack_from("<Q", self._map, offset)
            if index >= head and any(self._map[offset : offset + _RECORD_BYTES]):
                self._map[offset : offset + _RECORD_BYTES] = bytes(_RECORD_BYTES)

    def _read(self, index: int) -> Record | None:
        if index < 0:
            return None
        offset = self._offset(index)
        body = self._map[offset : offset + _BODY.size]
        (crc,) = _CRC.unpack_from(self._map, offset + _BODY.size)
        if crc != zlib.crc32(body, _CRC_SEED):
            return None
        found, start, rows, steps, environments, transitions, cumulative, key, incarnation, sequence = _BODY.unpack(
            body
        )
        if found != index:
            return None
        source = SegmentSource(key, incarnation, sequence)
        return Record(found, start, rows, steps, environments, transitions, cumulative, source)

    def _offset(self, index: int) -> int:
        return _HEADER_BYTES + index % self.slots * _RECORD_BYTES


def _pack(record: Record) -> bytes:
    body = _BODY.pack(
        record.index,
        record.start,
        record.rows,
        record.steps,
        record.environments,
        record.transitions,
        record.cumulative_transitions,
        record.source.actor_key,
        record.source.incarnation,
        record.source.sequence,
    )
    return (body + _CRC.pack(zlib.crc32(body, _CRC_SEED))).ljust(_RECORD_BYTES, b"\0")
