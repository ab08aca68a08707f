"""Writes that may fail without ending the learner, as on a full disk."""

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Tolerated:
    """Tries a write again and again. It says in one line when the write begins to fail, and when it works again."""

    def __init__(self, what: str) -> None:
        """what: names the file in the log."""
        self._what = what
        self.error: OSError | None = None
        """What went wrong at the last attempt; None when nothing did."""

    def attempt(self, write: Callable[[], object]) -> bool:
        """Call `write`; False when it raised OSError."""
        try:
            write()
        except OSError as error:
            if self.error is None:
                _log.error("%s cannot be written (%s); trying again", self._what, error.strerror or error)
            self.error = error
            return False
        if self.error is not None:
            _log.info("%s is written again", self._what)
        self.error = None
        return True
