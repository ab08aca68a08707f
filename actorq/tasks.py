"""Work that goes on when its caller leaves.

Its error is then taken by nobody, and asyncio would log it with a traceback.
"""

import asyncio
import logging
from functools import partial
from typing import Any, TypeVar

from actorq.errors import ActorQError

F = TypeVar("F", bound="asyncio.Future[Any]")

_log = logging.getLogger(__name__)


def may_be_left(work: F, what: str) -> F:
    """Take the error of `work` once it is done; callers that are still there get it too.

    what: the work, for one line in the log when a fault ends it. The domain's errors are for the caller alone.
    """
    work.add_done_callback(partial(_take_error, what))
    return work


def _take_error(what: str, work: "asyncio.Future[Any]") -> None:
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, ActorQError):
        _log.error("%s failed: %s: %s", what, type(error).__name__, error)
