"""Repeats writes that may fail, for example on a full disk, without ending the learner."""

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Tolerated:
    """A write that may be repeated. Logs a line when writes begin to fail, and a line when they succeed again."""

    def __init__(self, what: str, otherwise: str = "trying again") -> None:
        """what: name of the file in the log. otherwise: the consequence of a failed write, for the log."""
        self._what = what
        self._otherwise = otherwise
        self.error: OSError | None = None
        """The error of the last attempt; None after a success."""

    def attempt(self, write: Callable[[], object]) -> bool:
        """Call `write`. Returns False when it raised OSError."""
        try:
            write()
        except OSError as error:
            if self.error is None:
                _log.error("%s cannot be written (%s); %s", self._what, error.strerror or error, self._otherwise)
            self.error = error
            return False
        if self.error is not None:
            _log.info("%s is written again", self._what)
        self.error = None
        return True
