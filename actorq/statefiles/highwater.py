"""A high-water mark: the highest number that may be in use. It is on disk before the number is used.

The mark reserves numbers in blocks. Another thread reserves the next block before the current one is used up. Callers
therefore almost never wait for the disk.
"""

import logging
import threading
from pathlib import Path

from actorq.errors import InvalidInputError
from actorq.statefiles.documents import read_document, write_document
from actorq.statefiles.tolerance import Tolerated

_log = logging.getLogger(__name__)

# Numbers that one write reserves.
BLOCK = 64
# If the mark is lost, numbers continue this far above the known ones. Between two checkpoints a run uses fewer.
LEAP = 2**14
LEAP_OF_COPIES = 2**24
"""If a run is restored from a copy, versions continue this far above the copy's: no run publishes this many."""


class HighWaterMark:
    """Guarantees that a restarted process never reuses a number, even after SIGKILL or a power failure.

    path: the file of the mark; the first `reserve` creates it.
    known: the highest number that other files prove to be used; 0 for none.

    A damaged mark is logged and replaced, and numbers continue `LEAP` above. A missing mark is treated in the same way
    if numbers are known. Only one thread may call `reserve` and `close`.
    """

    def __init__(self, path: Path, known: int) -> None:
        self._path = path
        self.floor = _floor(path, known)
        """Earlier instances may have used numbers up to this one."""
        self._highest = self.floor
        # The mark on disk. Readers do not take the lock, which is held during a write.
        self._stored = self.floor if path.exists() else 0
        self._writing = threading.Lock()
        self._writes_ahead = Tolerated(path.name)
        self._ahead: threading.Thread | None = None

    def reserve(self, number: int) -> None:
        """Return when the mark on disk is above the number. Raises OSError when the write fails."""
        self._highest = max(self._highest, number)
        if number > self._stored:
            self._write(number, number)
        elif self._stored - number < BLOCK // 2 and (self._ahead is None or not self._ahead.is_alive()):
            self._ahead = threading.Thread(target=self._write_ahead, args=(number,), name="high water", daemon=True)
            self._ahead.start()

    def close(self) -> None:
        """Return the unused reserved numbers, so that the next process continues without a gap."""
        if self._ahead is not None:
            # A thread that has not begun its write would otherwise reserve a block after this.
            self._ahead.join()
        with self._writing:
            if self._highest < self._stored:
                try:
                    self._store(self._highest)
                except OSError as error:
                    _log.warning("%s keeps its block of reserved numbers: %s", self._path, error)

    def _write_ahead(self, number: int) -> None:
        # `reserve` tries again, and raises if the number is above the mark.
        self._writes_ahead.attempt(lambda: self._write(number, number + BLOCK))

    def _write(self, number: int, needed: int) -> None:
        """Reserve a block above `number`, unless the mark is already at `needed`. The mark only rises."""
        with self._writing:
            if needed > self._stored:
                self._store(number + BLOCK)

    def _store(self, mark: int) -> None:
        write_document(self._path, {"mark": mark}, sync=True)
        self._stored = mark


def _floor(path: Path, known: int) -> int:
    try:
        mark = read_document(path).get("mark")
        if not isinstance(mark, int) or mark < 0:
            raise InvalidInputError(f"{path.name} is damaged: expected a mark from 0, got {mark!r:.50}")
        return max(mark, known)
    except FileNotFoundError:
        if not known:
            return 0
        reason = f"{path.name} is missing"
    except InvalidInputError as error:
        reason = str(error)
    _log.warning("%s: numbers continue at %d, %d above the highest known one", reason, known + LEAP + 1, LEAP)
    return known + LEAP
