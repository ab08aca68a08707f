"""Watches the learners of active runs and keeps the newest status of each."""

import logging
import threading
from collections.abc import Callable, Sequence

from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError
from actorq.transport.options import Certificates
from actorq_apps.cluster.objects import Object
from actorq_apps.operator.status.observed_run import is_ready, role_of

_PERIOD_S = 1.0
# A learner that is silent for this long counts as gone. The reason then comes from Kubernetes.
_PATIENCE_S = 10.0

_log = logging.getLogger(__name__)


class RunWatch:
    """The newest status of one run. A thread reads it from the learner until the run is over or the learner is gone.

    tell: called from that thread when the run's state has changed, and when the run is over.
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
            # The operator continues. The next reconciliation of the run starts another watch.
            _log.exception("%s: the watch has failed", self._address)
            self.newest = None
        finally:
            self._client.close()
            self.ended = True
            # If the learner is gone or refuses, the run waits for its next reconciliation. An immediate retry would be
            # refused again.
            if self.newest is not None:
                self._tell()


class Answers:
    """The status from one run's learner, for periodic reconciliations.

    tell: as in RunWatch.
    awaited: whether the first request to the learner is still unanswered. Until its answer, nothing is known about the
        learner.
    """

    def __init__(self, address: str, tell: Callable[[], object], clock: Callable[[], float]) -> None:
        self.awaited = False
        self._address = address
        self._tell = tell
        self._clock = clock
        self._first_until = clock() + _PATIENCE_S
        self._watch: RunWatch | None = None

    def newest(self, pods: Sequence[Object], ask: Callable[[], Certificates | None]) -> RunStatus | None:
        """The newest status; None while the learner does not answer. `ask` returns the certificates for a new watch."""
        live, watch = None, self._watch
        learners = [each for each in pods if role_of(each) == "learner"]
        if all(each["metadata"].get("deletionTimestamp") for each in learners):
            self.close()
        elif watch is not None and (not watch.ended or (watch.newest is not None and watch.newest.state.final)):
            live = watch.newest
        elif any(map(is_ready, learners)):
            self._watch = RunWatch(self._address, ask(), self._tell)
        if live is not None or (watch is not None and watch.ended):
            self._first_until = float("-inf")
        self.awaited = live is None and self._watch is not None and self._clock() < self._first_until
        return live

    def close(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
