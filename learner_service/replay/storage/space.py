"""Watches the free space of the replay's disk."""

import logging
from pathlib import Path

from actorq.text import size_text
from learner_service.replay.storage.mapped_files import Machine

_log = logging.getLogger(__name__)

# A low disk counts as low until its free space is this multiple of the minimum.
_ENOUGH = 1.25


class DiskWatch:
    """Logs one line when the disk of a folder has less than `least_bytes`, and one line when it has room again."""

    def __init__(self, folder: Path, least_bytes: int, machine: Machine) -> None:
        self._folder = folder
        self._least = least_bytes
        self._machine = machine
        self.free_bytes = machine.free_bytes(folder)
        """Free bytes at the last check."""
        self.low = False
        """Whether actors should wait."""

    def check(self, reserved: bool) -> bool:
        """Return whether the disk is low now. reserved: whether the replay got the requested space."""
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
