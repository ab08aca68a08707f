"""Watches the learners of active runs and keeps the newest status of each."""

import logging
import threading
from collections.abc import Callable

from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError
from actorq.transport.options import Certificates

_PERIOD_S = 1.0
# A learner that does not answer for so long counts as gone. Kubernetes then says why.
_PATIENCE_S = 10.0

_log = logging.getLogger(__name__)


class RunWatch:
    """The newest status of one run. A thread reads it from the learner until the run is over or the learner is gone.

    tell: called from that thread when the state of the run has changed, and when the run is over.
    """

    def __init__(self, address: str, certificates: Certificates | None, tell: Callable[[], object]) -> None:
        self.newest: RunStatus | None = None
        # Whether no newer status will come from this watch.
        self.ended = False
        self._client = LearnerClient(address, certificates)
        self._tell = tell
        self._address = address
        threading.Thread(target=self._watch, name=f"watch {address}", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._client.close()

    def _watch(self) -> None:
        try:
            for status in self._client.watch(_PERIOD_S, _PATIENCE_S):
                before, self.newest = self.newest, status
                if before is None or before.state is not status.state:
                    self._tell()
        except ActorQError as error:
            _log.info("%s: %s", self._address, error)
            self.newest = None
        except Exception:
            # The operator goes on, and the next look at the run starts another watch.
            _log.exception("%s: the watch has failed", self._address)
            self.newest = None
        finally:
            self._client.close()
            self.ended = True
            # A learner that is gone or refuses is looked at in its turn. At once, a refusal would lead to the next one.
            if self.newest is not None:
                self._tell()
