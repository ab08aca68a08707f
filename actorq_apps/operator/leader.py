"""Leader election among the operator's replicas, with a Lease of Kubernetes.

A holder renews its Lease. Another replica takes over after `duration_s` seconds without a change. It measures this time
with its own clock, because the clocks of two machines differ. The method is the same as in client-go's leaderelection.
"""

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from actorq.errors import ActorQError, ConflictError, UnavailableError, UserError
from actorq_apps.cluster.answers import ForbiddenError
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.objects import Object, part

LEASE = "actorq-operator"
VERSION_ANNOTATION = "actorq/version"
_API = ("coordination.k8s.io/v1", "Lease")

_log = logging.getLogger(__name__)


class NewerVersionError(UserError):
    """A newer version of the operator has worked on these objects."""


@dataclass(frozen=True)
class Times:
    """Seconds of an election. A holder gives up before another replica may take over: give_up_s < duration_s.

    An attempt may last give_up_s for all of its requests together.
    """

    duration_s: float = 15.0
    give_up_s: float = 10.0
    retry_s: float = 2.0


@dataclass(eq=False)
class Leader:
    """One replica's part in the election.

    name: unique name of the replica.
    version: version of this software. An older version refuses to follow a newer one, because it may not know its
        objects.
    leads: whether this replica held the Lease at its last attempt.
    """

    cluster: Cluster
    name: str
    version: str
    times: Times = Times()
    clock: Callable[[], float] = time.monotonic
    leads: bool = field(default=False, init=False)
    _seen: tuple[object, float] = field(default=(None, 0.0), init=False)
    # Start of the last successful attempt.
    _renewed: float = field(default=float("-inf"), init=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)

    def acquire(self) -> bool:
        """Wait for the Lease. Returns False after `stop`. Raises NewerVersionError if a newer version held it last."""
        while not self._stopped.is_set():
            try:
                self.leads = self.try_once()
                if self.leads:
                    return True
            except NewerVersionError:
                raise
            except ActorQError as error:
                # The next attempt may succeed, once the API server is reachable or the permission is granted.
                _log.warning("the Lease: %s", error)
            self._stopped.wait(self.times.retry_s)
        return False

    def hold(self, ended: threading.Event) -> bool:
        """Renew the Lease. Returns False when it is lost, and True when the work that needs it has ended."""
        while (left_s := self._renewed + self.times.give_up_s - self.clock()) > 0:
            if ended.wait(min(self.times.retry_s, left_s)):
                return True
            try:
                if not self.try_once(self._renewed + self.times.give_up_s):
                    return False
            except ActorQError as error:
                _log.warning("the Lease: %s", error)
        return False

    def try_once(self, deadline: float | None = None) -> bool:
        """Take or renew the Lease if allowed now, until `deadline`. Returns whether this replica holds it."""
        began = self.clock()
        end = began + self.times.give_up_s if deadline is None else deadline
        lease = self._until(end).get(*_API, LEASE)
        try:
            if lease is None:
                self._until(end).create({**self._record(), "apiVersion": _API[0], "kind": _API[1]})
            elif self._may_take(lease):
                self._until(end).patch(*_API, LEASE, self._record(lease))
            else:
                return False
        except ConflictError:
            # Another replica was faster.
            return False
        self._renewed = began
        return True

    def stop(self) -> None:
        """Let `acquire` return."""
        self._stopped.set()

    def release(self) -> None:
        """Release the Lease at once for the next replica, if this one holds it."""
        self.leads = False
        lease = self.cluster.get(*_API, LEASE)
        if lease is not None and part(lease, "spec").get("holderIdentity") == self.name:
            condition = {"resourceVersion": lease["metadata"].get("resourceVersion")}
            self.cluster.patch(*_API, LEASE, {"metadata": condition, "spec": {"holderIdentity": ""}})

    def _until(self, deadline: float) -> Cluster:
        """The cluster for a request that ends by the deadline. Raises UnavailableError when no time is left."""
        left_s = deadline - self.clock()
        if left_s <= 0:
            raise UnavailableError(f"the API server has not answered in {self.times.give_up_s:g} s")
        return self.cluster.at(self.cluster.namespace, timeout_s=left_s)

    def _may_take(self, lease: Object) -> bool:
        """Whether the Lease is this replica's, free, or expired. Raises NewerVersionError."""
        spec = part(lease, "spec")
        holder = str(spec.get("holderIdentity") or "")
        if holder == self.name:
            return True
        newest = str(part(lease, "metadata", "annotations").get(VERSION_ANNOTATION) or "")
        if _ordered(newest) > _ordered(self.version):
            raise NewerVersionError(
                f"version {newest} of the operator was here: this is version {self.version}, and it may not know its "
                f"objects; install {newest}, or delete Lease {LEASE} in namespace {self.cluster.namespace} to go back"
            )
        record = (spec.get("holderIdentity"), spec.get("renewTime"))
        if holder and record != self._seen[0]:
            self._seen = (record, self.clock())
        unchanged_s = self.clock() - self._seen[1]
        return not holder or unchanged_s >= float(spec.get("leaseDurationSeconds") or self.times.duration_s)

    def _record(self, lease: Object | None = None) -> Object:
        metadata: Object = {"name": LEASE, "annotations": {VERSION_ANNOTATION: self.version}}
        if lease is not None:
            metadata["resourceVersion"] = lease["metadata"].get("resourceVersion")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        times = {"leaseDurationSeconds": round(self.times.duration_s), "renewTime": now}
        return {"metadata": metadata, "spec": {"holderIdentity": self.name, **times}}


@dataclass(eq=False)
class OtherOperators:
    """Detects namespaces with an operator of their own: an operator whose Lease exists there and is being renewed.

    An operator for several namespaces leaves the runs there to that operator. Otherwise each would undo the other's
    changes.
    """

    cluster: Cluster
    times: Times = Times()
    clock: Callable[[], float] = time.monotonic
    # For each namespace: the Lease's holder and time, the time of their last change, and the time of the last read.
    _seen: dict[str, tuple[object, float, float]] = field(default_factory=dict, init=False)

    def manages(self, namespace: str) -> bool:
        """Whether another operator manages the runs of a namespace. Reads its Lease periodically.

        A Lease that is seen for the first time counts as renewed.
        """
        if namespace == self.cluster.namespace:
            return False
        now = self.clock()
        record, since, read = self._seen.get(namespace, (None, now, float("-inf")))
        if now - read >= self.times.give_up_s:
            newest = self._record(namespace)
            record, since = newest, since if newest == record else now
            self._seen[namespace] = record, since, now
        return record is not None and now - since < self.times.duration_s

    def _record(self, namespace: str) -> object:
        """Holder and time of the Lease; None without a holder."""
        try:
            spec = part(self.cluster.at(namespace).get(*_API, LEASE), "spec")
        except ForbiddenError:
            # The role of an earlier version lacks this permission. Runs then continue as in that version.
            return None
        return (spec["holderIdentity"], spec.get("renewTime")) if spec.get("holderIdentity") else None


def _ordered(version: str) -> tuple[int, ...]:
    """The numbers in a version such as 0.2.0, for a comparison."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
