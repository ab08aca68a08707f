"""Lets work continue after its caller stops waiting. By default, asyncio logs the work's error with a traceback."""

import asyncio
import logging
from typing import Any, TypeVar

from actorq.errors import ActorQError

F = TypeVar("F", bound="asyncio.Future[Any]")

_log = logging.getLogger(__name__)


def may_be_left(work: F, what: str) -> F:
    """Retrieve the error of `work` once it is done. Callers that still wait get the error too.

    what: name of the work in the log line of an unexpected error. Errors of the domain are not logged.
    """

    def log_error(done: "asyncio.Future[Any]") -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, ActorQError):
            _log.error("%s failed: %s: %s", what, type(error).__name__, error)

    work.add_done_callback(log_error)
    return work
