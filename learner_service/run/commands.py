"""Keeps what operators have commanded on the disk, so that a learner that is killed afterwards has not forgotten it."""

import logging
import threading
from pathlib import Path

from actorq.errors import InvalidInputError, UnavailableError
from actorq.statefiles.documents import read_either, write_twice
from learner_service.files import COMMANDS

_PAUSED, _STOPPED = "paused", "stopped"

_log = logging.getLogger(__name__)


class Commands:
    """Whether a run is paused, and whether it is to end. Thread-safe; writes wait for the disk."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / COMMANDS
        self._lock = threading.Lock()
        try:
            values = read_either(self._path) or {}
        except InvalidInputError as error:
            _log.error(
                "%s, and no copy of it is whole: the run goes on as if no operator had paused or ended it", error
            )
            values = {}
        self.paused = values.get(_PAUSED) is True
        self.stopped = values.get(_STOPPED) is True

    def pause(self) -> None:
        """Remember that training is paused. Raises UnavailableError, and changes nothing, when the disk refuses."""
        self._write(True, self.stopped)

    def resume(self) -> None:
        """Remember that training goes on. Raises like `pause`."""
        self._write(False, self.stopped)

    def stop(self) -> None:
        """Remember that the run is to end. Raises like `pause`."""
        self._write(self.paused, True)

    def forget(self) -> None:
        """Forget commands of a run that was over and continues. Raises like `pause`."""
        self._write(False, False)

    def _write(self, paused: bool, stopped: bool) -> None:
        with self._lock:
            if (paused, stopped) == (self.paused, self.stopped):
                return
            try:
                write_twice(self._path, {_PAUSED: paused, _STOPPED: stopped})
            except OSError as error:
                raise UnavailableError(f"the command cannot be written ({error.strerror}): try again") from error
            self.paused, self.stopped = paused, stopped
