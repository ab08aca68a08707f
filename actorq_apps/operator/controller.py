"""Reconciles all runs: reads their names from a queue, and lists all runs periodically."""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from actorq.errors import ActorQError, ConflictError
from actorq.telemetry.histogram import Histogram
from actorq_apps.cluster.connection import Cluster
from actorq_apps.operator.reconcile import PERIOD_S, Key, Reconciler
from actorq_apps.operator.resource.training_run import API_VERSION, KIND

# Seconds between lists of all runs. A lost event is handled after at most this time.
LIST_PERIOD_S = 60.0
# A reconciliation or a list that takes longer is hanging. Each of its requests ends after 30 s.
LOOK_LIMIT_S = 180.0
# Results of a reconciliation.
DONE, CONFLICT, FAILED = "done", "conflict", "failed"
# After a conflict, the next reconciliation reads the newer object.
_CONFLICT_S = 0.5

_log = logging.getLogger(__name__)

N = TypeVar("N", bound=Hashable)


class DueQueue(Generic[N]):
    """Names by due time. The earliest time of a name applies. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[N, float] = {}
        self._changed = threading.Condition()
        self.closed = False

    def put(self, name: N, delay_s: float = 0.0) -> None:
        """Make a name due after a delay."""
        at = self._clock() + delay_s
        with self._changed:
            self._due[name] = min(at, self._due.get(name, at))
            self._changed.notify_all()

    def get(self, at_most_s: float) -> N | None:
        """Wait for a due name and remove it; None after `at_most_s` seconds, and when the queue is closed."""
        end = self._clock() + at_most_s
        with self._changed:
            while not self.closed:
                name, at = min(self._due.items(), key=lambda item: item[1], default=(None, end))
                now = self._clock()
                if name is not None and at <= now:
                    del self._due[name]
                    return name
                if end <= now:
                    return None
                self._changed.wait(min(at, end) - now)
        return None

    def close(self) -> None:
        """Make all waiting callers return."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def due(self) -> int:
        """The number of names that are due now."""
        with self._changed:
            return sum(at <= self._clock() for at in self._due.values())


@dataclass(eq=False)
class Controller:
    """Reconciles one run at a time.

    namespaces: the namespaces to reconcile; empty for all. reconciles: number of calls of `reconcile` by result.
    """

    cluster: Cluster
    namespaces: Sequence[str]
    queue: DueQueue[Key]
    reconciler: Reconciler
    clock: Callable[[], float] = time.monotonic
    reconciles: dict[str, int] = field(default_factory=lambda: dict.fromkeys((DONE, CONFLICT, FAILED), 0), init=False)
    reconcile_seconds: Histogram = field(default_factory=Histogram, init=False)
    # Start of the current reconciliation or list.
    _busy_since: float | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)

    def works(self) -> bool:
        """Whether no reconciliation hangs, and `run` has not ended while the queue was open. Thread-safe."""
        since = self._busy_since
        hangs = since is not None and self.clock() - since > LOOK_LIMIT_S
        return not hangs and (not self._ended or self.queue.closed)

    def list_runs(self) -> None:
        """Make all runs due, including deleted runs. Raises UserError when a permission is missing."""
        for key in self.reconciler.known():
            self.queue.put(key)
        for namespace in self.namespaces or ("",):
            for each in self.cluster.at(namespace).list(API_VERSION, KIND):
                self.queue.put(Key(each["metadata"]["namespace"], each["metadata"]["name"]))

    def run(self) -> None:
        """Reconcile until the queue is closed."""
        listed = float("-inf")
        try:
            while not self.queue.closed:
                if self.clock() - listed >= LIST_PERIOD_S:
                    listed = self._busy_since = self.clock()
                    try:
                        self.list_runs()
                    except ActorQError as error:
                        _log.warning("the list of runs: %s", error)
                    except Exception:
                        _log.exception("the list of runs")
                    self._busy_since = None
                if key := self.queue.get(max(0.0, listed + LIST_PERIOD_S - self.clock())):
                    self.reconcile(key)
        finally:
            self._ended = True
            self.reconciler.close()

    def reconcile(self, key: Key) -> None:
        """Reconcile one run and put it back for the next reconciliation."""
        began, result = self.clock(), FAILED
        self._busy_since = began
        try:
            delay_s, result = self.reconciler.reconcile(key), DONE
        except ConflictError:
            delay_s, result = _CONFLICT_S, CONFLICT
        except ActorQError as error:
            _log.warning("%s/%s: %s", *key, error)
            delay_s = PERIOD_S
        except Exception:
            # A bug that affects one run must not stop the others.
            _log.exception("%s/%s", *key)
            delay_s = LIST_PERIOD_S
        self._busy_since = None
        self.reconciles[result] += 1
        self.reconcile_seconds.observe(self.clock() - began)
        if delay_s is not None:
            self.queue.put(key, delay_s)
