"""Takes disk space for the replay before it is needed, and watches the free space."""

import contextlib
import logging
from pathlib import Path

from actorq.errors import UnavailableError
from actorq.text import size_text
from learner_service.replay.storage.columns import Columns
from learner_service.replay.storage.mapped_files import Machine

_log = logging.getLogger(__name__)

# Disk space is taken in pieces of about this many bytes.
_AHEAD_BYTES = 2**24
# A low disk counts as low until its free space is this multiple of the minimum.
_ENOUGH = 1.25


class SpaceAhead:
    """Takes disk space for rows in large pieces. Not thread-safe: the store's lock covers it."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._capacity = len(columns.flags)
        self._ahead = max(1, _AHEAD_BYTES // columns.row_nbytes)
        # Taking space again that a file already has is cheap.
        self._rows = 0

    def reserve(self, rows: int) -> None:
        """Take disk space for the first `rows` rows, and more if possible. Raises UnavailableError."""
        if rows <= self._rows:
            return
        for wanted in (min(self._capacity, rows + self._ahead), rows):
            try:
                self._columns.allocate(wanted)
                self._rows = wanted
                return
            except OSError as error:
                reason = error.strerror
        raise UnavailableError(f"replay: the disk has no room for more transitions: {reason}")

    def reserve_ahead(self, cursor: int) -> bool:
        """Take disk space after row `cursor` if little is left. Returns False when the disk is full."""
        with contextlib.suppress(UnavailableError):
            self.reserve(min(self._capacity, cursor + self._ahead // 2))
            return True
        return False


class DiskWatch:
    """Logs one line when the disk of a folder has less than `least_bytes`, and one when it has room again."""

    def __init__(self, folder: Path, least_bytes: int, machine: Machine) -> None:
        self._folder = folder
        self._least = least_bytes
        self._machine = machine
        self.free_bytes = machine.free_bytes(folder)
        """Free bytes at the last look."""
        self.low = False
        """Whether actors should wait."""

    def check(self, reserved: bool) -> bool:
        """Return whether the disk is low now. reserved: whether the replay got the space that it asked for."""
        self.free_bytes = self._machine.free_bytes(self._folder)
        least = self._least * (_ENOUGH if self.low else 1.0)
        low = not reserved or self.free_bytes < least
        if low and not self.low:
            _log.warning(
                "the disk of %s is full: %s are free, below %s; actors wait until there is room",
                *(self._folder, size_text(self.free_bytes), size_text(self._least)),
            )
        if self.low and not low:
            _log.info("the disk of %s has room again: %s are free", self._folder, size_text(self.free_bytes))
        self.low = low
        return low
