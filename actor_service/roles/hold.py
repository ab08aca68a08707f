"""Keeps the version that is being evaluated from being dropped for newer ones before its evaluation is known."""

import logging
import time
from collections.abc import Callable

from actorq.client import QuantizerClient
from actorq.errors import ActorQError, NotFoundError

_log = logging.getLogger(__name__)

# As long as a quantizer grants: the evaluation also has to reach it by way of the learner, which may be away.
_HOLD_S = 3600.0
# A quantizer that restarted has forgotten what it held.
_RENEWAL_S = 60.0


class PolicyHold:
    """Asks the quantizer to hold one version at a time; for one thread.

    A quantizer that cannot be reached, or does not hold versions, is no reason not to evaluate: that is logged once.

    clock: seconds.
    """

    def __init__(self, client: QuantizerClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._version = 0
        self._asked_at = 0.0
        self._lost = 0
        self._failing = False

    def take(self, version: int) -> bool:
        """Hold this version from now on; False when the quantizer says that it is gone already."""
        self._version = version
        return self._ask()

    def renew(self) -> None:
        """Go on holding it; to be called often, which costs nothing most of the time."""
        if self._clock() - self._asked_at >= _RENEWAL_S:
            self._ask()

    def _ask(self) -> bool:
        try:
            self._client.hold(self._version, _HOLD_S)
        except NotFoundError as error:
            if self._lost != self._version:
                _log.warning("version %d was lost before its evaluation was known: %s", self._version, error)
            self._lost = self._version
            return False
        except ActorQError as error:
            if not self._failing:
                _log.warning("versions are evaluated without being held, and may be dropped meanwhile: %s", error)
            self._failing = True
        else:
            self._failing = False
        finally:
            # Also of a failure, which may have taken as long as a deadline.
            self._asked_at = self._clock()
        return True
