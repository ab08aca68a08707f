"""Detects TrainingRuns with news: follows the API server's change streams, in separate threads."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from actorq.errors import ActorQError
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.objects import Object, part
from actorq_apps.operator.controller import DueQueue
from actorq_apps.operator.reconcile import Key
from actorq_apps.operator.resource.training_run import API_VERSION, KIND

# The server ends a stream after this time. The next stream continues there.
_STREAM_S = 240

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class News:
    """Puts new, changed and deleted runs into the queue. Ignores changes of only the status."""

    queue: DueQueue[Key]
    _seen: dict[Key, tuple[object, ...]] = field(default_factory=dict, init=False)

    def notice(self, kind: str, resource: Object) -> None:
        """A change of an object: ADDED, MODIFIED or DELETED."""
        metadata = part(resource, "metadata")
        key = Key(str(metadata.get("namespace")), str(metadata.get("name")))
        version = (metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"))
        before = self._seen.pop(key, None)
        if kind != "DELETED":
            self._seen[key] = version
        if before != version or kind == "DELETED":
            self.queue.put(key)


def follow(cluster: Cluster, namespaces: Sequence[str], queue: DueQueue[Key], pause_s: float = 1.0) -> None:
    """Start threads that put the news of runs in these namespaces into the queue, until it is closed.

    The threads write nothing to objects, so no finalizer blocks an object while no operator runs. The next list of all
    runs covers missed news. The threads end with their streams, or with the process.

    pause_s: seconds between the end of a stream and the next attempt.
    """
    for each in namespaces or ("",):
        # Each thread has its own News, which stores the changes seen in its namespaces.
        arguments = cluster.at(each), News(queue), pause_s
        threading.Thread(target=_follow, args=arguments, name="news", daemon=True).start()


def _follow(cluster: Cluster, news: News, pause_s: float) -> None:
    version = ""
    while not news.queue.closed:
        after, version = version, ""
        try:
            version = _stream(cluster, news, after)
        except ActorQError as error:
            _log.warning("the news of runs: %s", error)
        except Exception:
            # One unreadable object must not hide the others.
            _log.exception("the news of runs")
        time.sleep(pause_s)


def _stream(cluster: Cluster, news: News, version: str) -> str:
    """Follow one stream of changes from a version of the list. Returns its last version; empty to list again."""
    if not version:
        found, version = cluster.listed(API_VERSION, KIND)
        for each in found:
            news.notice("ADDED", each)
    for kind, each in cluster.changes(API_VERSION, KIND, version, _STREAM_S):
        if news.queue.closed or kind == "ERROR":
            # The server has forgotten the version.
            return ""
        version = str(part(each, "metadata").get("resourceVersion") or "")
        news.notice(kind, each)
    return version
