"""Optuna's journal of a study, with a checksum in each line."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from actorq.errors import UserError
from actorq.statefiles.files import append_whole, sync_folder
from actorq.statefiles.lines import encode_line, read_lines


class CheckedJournal(BaseJournalBackend):
    """A file of JSON lines with a single writing process. Each written line is on the disk.

    A line has the format of Optuna's JournalFileBackend plus a CRC-32, so Optuna's programs can read the file. A killed
    process or a power failure may leave an incomplete last line. It is dropped.

    Raises UserError for damage before the last line, because the numbers of later trials depend on all earlier lines.
    """

    def __init__(self, path: Path) -> None:
        lines = list(read_lines(path)) if path.exists() else []
        if lines and (lines[-1][1] is None or not path.read_bytes().endswith(b"\n")):
            whole = sum(len(line) + 1 for line, _ in lines[:-1])
            os.truncate(path, whole)
            lines.pop()
        damaged = next((number for number, (_, values) in enumerate(lines, 1) if values is None), None)
        if damaged is not None:
            raise UserError(
                f"--directory: line {damaged} of {path} is damaged: put a copy of the file there, or start a new sweep "
                "in another folder"
            )
        self._logs = [values for _, values in lines if values is not None]
        self._file = path.open("ab", buffering=0)
        sync_folder(path.parent)

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """All entries from this number on."""
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write entries to the disk. Raises UserError, and writes nothing, when that fails."""
        try:
            append_whole(self._file, b"".join(encode_line(log) for log in logs))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"--directory: {self._file.name} cannot be written ({error.strerror})") from None
        self._logs += logs
