"""Brings the replay to the disk and keeps the watermark that says how far."""

import threading
from dataclasses import dataclass
from pathlib import Path

from learner_service.replay.storage.columns import Columns
from learner_service.replay.storage.directory import SegmentDirectory, Watermark
from learner_service.replay.storage.sequences import LastSequences, save_sequences


@dataclass(frozen=True)
class Mark:
    """How far a store had come: segments and transitions ever inserted, oldest live segment, last sequences."""

    index: int = 0
    transitions: int = 0
    oldest: int = 0
    sequences: dict[tuple[bytes, int], int] | None = None


class Durability:
    """What of a store is on the disk. `sync` may run beside all other calls; the owner's lock covers the rest.

    sequences: file of the last sequence numbers. It covers durable segments only, so it never claims a lost one.
    boot_id: of this boot.
    """

    def __init__(self, columns: Columns, directory: SegmentDirectory, sequences: Path, boot_id: str) -> None:
        self._columns = columns
        self._directory = directory
        self._sequences = sequences
        self._boot_id = boot_id
        self._saved_through = 0
        self._syncing = threading.Lock()
        self._refused = False
        self.durable = Mark()
        """What survives a power cut. After a restart nothing counts until the next `sync`."""

    @property
    def covers_next_record(self) -> bool:
        """Whether the record that the next one overwrites is not the only one to tell its sequence number."""
        return self._directory.head - self._saved_through < self._directory.slots

    def load(self, sequences: LastSequences) -> None:
        """Record what was saved of the last sequence numbers."""
        self._saved_through = sequences.load(self._sequences)

    def mark(self, sequences: LastSequences) -> Mark:
        """How far the store has come, for `sync`."""
        if self._refused:
            # The kernel takes pages for written once the disk has refused them: change them again.
            self._touch_since(self.durable.index)
        directory = self._directory
        oldest = directory.live[0].index if directory.live else directory.head
        return Mark(directory.head, directory.total_transitions, oldest, sequences.as_dict())

    def sync(self, mark: Mark) -> None:
        """Block until everything before `mark` is on the disk and the watermark says so.

        Raises OSError; then `durable` is as it was.
        """
        with self._syncing:
            durable = self.durable
            known = durable.sequences is not None
            if known and (mark.index, mark.oldest) <= (durable.index, durable.oldest):
                return
            self._refused = True
            self._columns.sync()
            self._directory.sync()
            self._directory.write_watermark(Watermark(mark.index, mark.transitions, self._boot_id))
            self._directory.sync()
            self._refused, self.durable = False, mark
            if mark.index - self._saved_through >= self._directory.slots // 4:
                save_sequences(self._sequences, mark.sequences or {}, mark.index)
                self._saved_through = mark.index

    def _touch_since(self, index: int) -> None:
        for record in reversed(self._directory.live):
            if record.index < index:
                break
            self._columns.touch(record.start, record.stop)
        self._directory.touch()
