"""Reconciles all runs: takes their names from a queue, and lists them from time to time."""

import logging
import time
from collections.abc import Callable, Sequence

from actorq.cluster.connection import Cluster
from actorq.errors import ActorQError, ConflictError
from actorq.operator.duequeue import DueQueue
from actorq.operator.reconcile import PERIOD_S, Key, Reconciler
from actorq.operator.resource import API_VERSION, KIND

# Seconds between lists of all runs: a lost event is made up for after at most this time.
LIST_PERIOD_S = 60.0
# After a conflict the next look reads the newer object.
_CONFLICT_S = 0.5

_log = logging.getLogger(__name__)


class Controller:
    """Reconciles one run at a time.

    namespaces: those to look at; empty for all.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Sequence[str],
        queue: DueQueue[Key],
        reconciler: Reconciler,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespaces = tuple(namespaces) or ("",)
        self._queue = queue
        self._reconciler = reconciler
        self._clock = clock

    def list_runs(self) -> None:
        """Make all runs due, also those whose deletion was missed. Raises UserError when a permission is missing."""
        for key in self._reconciler.known():
            self._queue.put(key)
        for namespace in self._namespaces:
            for each in self._cluster.at(namespace).list(API_VERSION, KIND):
                self._queue.put(Key(each["metadata"]["namespace"], each["metadata"]["name"]))

    def run(self) -> None:
        """Reconcile until the queue is closed."""
        listed = float("-inf")
        while not self._queue.closed:
            if self._clock() - listed >= LIST_PERIOD_S:
                listed = self._clock()
                try:
                    self.list_runs()
                except ActorQError as error:
                    _log.warning("the list of runs: %s", error)
            key = self._queue.take(max(0.0, listed + LIST_PERIOD_S - self._clock()))
            if key is not None:
                self.look(key)
        self._reconciler.close()

    def look(self, key: Key) -> None:
        """Reconcile one run and put it back for the next look."""
        try:
            delay_s = self._reconciler.reconcile(key)
        except ConflictError:
            delay_s = _CONFLICT_S
        except ActorQError as error:
            _log.warning("%s/%s: %s", *key, error)
            delay_s = PERIOD_S
        except Exception:
            # A fault of the operator at one run must not stop the others.
            _log.exception("%s/%s", *key)
            delay_s = LIST_PERIOD_S
        if delay_s is not None:
            self._queue.put(key, delay_s)
