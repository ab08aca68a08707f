"""Flushes the replay to the disk, and keeps the watermark of the flushed part."""

import errno
import threading
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from learner_service.replay.storage.columns import Columns
from learner_service.replay.storage.directory import SegmentDirectory, Watermark
from learner_service.replay.storage.sequences import LastSequences, save_sequences


@dataclass(frozen=True)
class Mark:
    """The progress of a store: segments and transitions ever inserted, oldest live segment, last sequences.

    forgotten: as in `LastSequences`. failures: failed flushes before. Without values it is below all others.
    """

    index: int = -1
    transitions: int = 0
    oldest: int = 0
    sequences: dict[tuple[bytes, int], int] = field(default_factory=dict)
    forgotten: int = 0
    failures: int = 0


class Durability:
    """Tracks the part of a store that is on the disk. `sync` is thread-safe; the owner's lock covers the rest.

    table: file of the last sequence numbers. It covers only durable segments, so it never contains a lost segment.
    boot_id: identifier of this boot.
    """

    def __init__(
        self, columns: Columns, directory: SegmentDirectory, sequences: LastSequences, table: Path, boot_id: str
    ) -> None:
        self._columns = columns
        self._directory = directory
        self._sequences = sequences
        self._table = table
        self._boot_id = boot_id
        self._saved_through = 0
        self._syncing = threading.Lock()
        self._refused = False
        self._failures = 0
        self.durable = Mark()
        """The progress that survives a power cut. After a restart it is empty until the next `sync`."""

    @property
    def covers_next_record(self) -> bool:
        """Whether the table of sequences covers the record that the next record overwrites."""
        return self._directory.head - self._saved_through < self._directory.slots

    def load(self) -> None:
        """Load the saved sequence numbers."""
        self._saved_through = self._sequences.load(self._table)

    def mark(self) -> Mark:
        """The present progress of the store, for `sync`."""
        if self._refused:
            # After a failed write, the kernel treats the pages as written, so they must be marked as changed again.
            since = self.durable.index
            for record in takewhile(lambda record: record.index >= since, reversed(self._directory.live)):
                self._columns.touch(record.start, record.stop)
            self._directory.touch()
        directory = self._directory
        oldest = directory.live[0].index if directory.live else directory.head
        return Mark(
            *(directory.head, directory.total_transitions, oldest),
            *(self._sequences.as_dict(), self._sequences.forgotten, self._failures),
        )

    def sync(self, mark: Mark) -> None:
        """Block until everything before `mark` is on the disk, and the watermark too.

        On an OSError, `durable` stays unchanged.
        """
        with self._syncing:
            if (mark.index, mark.oldest) > (self.durable.index, self.durable.oldest):
                if mark.failures != self._failures:
                    # The failed flush may have included pages of this mark that have not changed since.
                    raise OSError(errno.EIO, "the previous flush has failed")
                try:
                    self._columns.sync()
                    self._directory.file.sync()
                    self._directory.write_watermark(Watermark(mark.index, mark.transitions, self._boot_id))
                    self._directory.file.sync()
                except OSError:
                    self._refused, self._failures = True, self._failures + 1
                    raise
                self._refused, self.durable = False, mark
            # The table is also written without new segments, because an earlier attempt may have failed.
            if mark.index - self._saved_through >= self._directory.slots // 4:
                save_sequences(self._table, mark.sequences, mark.index, mark.forgotten)
                self._saved_through = mark.index
