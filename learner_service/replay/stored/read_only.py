"""Opens the files of a replay for reading. Several processes may read the same files."""

import hashlib
import json
from pathlib import Path

import numpy as np

from actorq.domain.contract import check_written
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import ConflictError
from learner_service.replay.storage.columns import Columns, open_columns
from learner_service.replay.storage.description import FORMAT_VERSION, described, read_description
from learner_service.replay.storage.directory import Record, SegmentDirectory
from learner_service.replay.storage.mapped_files import Machine, this_boot
from learner_service.replay.storage.recovery import CHECKED_AT_ONCE_BYTES, is_whole, recover
from learner_service.replay.storage.store import ReplayStore


class ReadOnlyStore(ReplayStore):
    """A store whose files never change. Changes of its arrays stay in the memory of this process.

    A damaged segment is skipped, as in a replay. digest: identifies the content; see `digest_of`.
    """

    digest: str

    @classmethod
    def read(
        cls, directory: Path, spec: EnvironmentSpec | None = None, checked_at_once: int = CHECKED_AT_ONCE_BYTES
    ) -> "ReadOnlyStore":
        """Open the files below `directory`. spec: replaces the described spec, which has no bounds of actions.

        Raises ConflictError when a file is missing, or when the description is damaged or has another format.
        """
        machine = Machine(this_boot(), read_only=True)
        found = read_description(directory)
        check_written(f"{directory}", found.get("contract", 1))
        if found.get("format_version") != FORMAT_VERSION:
            raise ConflictError(
                f"replay: {directory}: expected format {FORMAT_VERSION}, got {found.get('format_version')}"
            )
        own, capacity, further, segments = described(found)
        columns, _ = open_columns(directory, own, capacity, further, machine)
        log = SegmentDirectory(directory / "directory.bin", segments, False, machine)
        store = cls(directory, spec or own, columns, log, None, machine)
        # Before the recovery, which marks damaged segments.
        store.digest = digest_of(log, columns)
        # The writer has flushed everything, so a reboot since then has lost nothing.
        boot = machine.boot_id if log.watermark is None else log.watermark.boot_id
        store._add_recovered(recover(log, columns, boot, checked_at_once))
        # Algorithms with a replay read no further column.
        store.batched = ()
        return store

    def is_whole(self, record: Record) -> bool:
        """Whether the present rows of a segment agree with its checksum."""
        return is_whole(record, self._columns)

    def flush(self) -> None:
        """Nothing, because no file changes."""

    def close(self) -> None:
        """Close the files."""
        self._columns.close()
        self.directory.file.close()


def digest_of(directory: SegmentDirectory, columns: Columns) -> str:
    """SHA-256 of the columns and of the segments' sizes and checksums, 32 hexadecimal digits.

    Rows are not read: each segment's CRC-32 is compared with its rows when they are first drawn.
    """
    layout = [[file.name, column.dtype.str, *column.shape[1:]] for file, column in columns.checksummed]
    digest = hashlib.sha256(json.dumps(layout).encode())
    for record in directory.records().values():
        sizes = (record.steps, record.environments, record.transitions, record.checksum)
        digest.update(np.array(sizes, "<u8").tobytes())
    return digest.hexdigest()[:32]
