"""Keeps a policy version at the quantizer until its evaluation is known."""

import logging
import time
from collections.abc import Callable

from actorq.client import QuantizerClient
from actorq.errors import ActorQError, NotFoundError

_log = logging.getLogger(__name__)

# The longest hold that a quantizer grants. The evaluation reaches the quantizer through the learner, which may be down.
_HOLD_S = 3600.0
# Renewed because a restarted quantizer loses its holds.
_RENEWAL_S = 60.0


class PolicyHold:
    """Asks the quantizer to hold one version at a time. For use by one thread.

    If the quantizer is unreachable or cannot hold versions, the evaluation runs without a hold. This is logged once.

    clock: monotonic seconds.
    """

    def __init__(self, client: QuantizerClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._version = 0
        self._asked_at = 0.0
        self._lost = 0
        self._failing = False

    def acquire(self, version: int) -> bool:
        """Hold this version. Returns False when the quantizer no longer has it."""
        self._version = version
        return self._ask()

    def renew(self) -> None:
        """Renew the hold when it is due. Cheap enough to call after each episode."""
        if self._clock() - self._asked_at >= _RENEWAL_S:
            self._ask()

    def _ask(self) -> bool:
        try:
            self._client.hold(self._version, _HOLD_S)
        except NotFoundError as error:
            if self._lost != self._version:
                _log.warning("version %d was dropped before its evaluation ended: %s", self._version, error)
            self._lost = self._version
            return False
        except ActorQError as error:
            if not self._failing:
                _log.warning("evaluating without a hold; the quantizer may drop the version meanwhile: %s", error)
            self._failing = True
        else:
            self._failing = False
        finally:
            # Set after a failure too, because a failed call may take as long as its deadline.
            self._asked_at = self._clock()
        return True
