"""Keeps the exception that ended a learner on disk, so that the next learner can detect a repeated failure."""

import logging
from pathlib import Path

from actorq.errors import InvalidInputError, UnreadableError
from actorq.statefiles.documents import read_document, write_document
from actorq.text import one_line

_log = logging.getLogger(__name__)


def fails_again(directory: Path, failure: BaseException, life: int, made_updates: bool) -> bool:
    """Write down `failure`. Returns whether the previous learner ended with the same one, without an update between.

    Another restart would then end in the same way, for example after a mistake in a user's algorithm.
    life: number of this learner in its run.
    """
    path, text = directory / "failure.json", one_line(f"{type(failure).__name__}: {failure}")
    try:
        before = read_document(path)
    except (FileNotFoundError, InvalidInputError, UnreadableError):
        before = {}
    if before == {"exception": text, "life": life - 1} and not made_updates:
        return True
    try:
        write_document(path, {"exception": text, "life": life})
    except OSError as error:
        _log.warning("%s cannot be written (%s): the next learner cannot detect a repetition", path, error.strerror)
    return False
