"""Waits until a newly applied run makes progress, and reports the faults that prevent progress."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, UnavailableError
from actorq_apps.cluster.access import pods_of
from actorq_apps.cluster.connection import Cluster, UnreachableError
from actorq_apps.cluster.diagnosis import (
    CRASHED,
    UNSCHEDULABLE,
    Fault,
    is_outdated,
    is_rolled_out,
    pod_fault,
    view,
    waiting_for,
    workload_fault,
)
from actorq_apps.cluster.logs import last_log_line
from actorq_apps.cluster.objects import Object
from actorq_apps.cluster.training_runs import RecordedEnd, is_training_run, recorded_end
from actorq_apps.local.observer import Watcher

_CHANGE_S, _LONG_CHANGE_S = 1, 5


def await_progress(
    cluster: Cluster,
    ask: Callable[[], RunStatus],
    timeout_s: float,
    watcher: Watcher,
    until_over: bool = False,
    away_s: float = 1.0,
) -> RunStatus | RecordedEnd:
    """Return once environment steps have grown, or the run is over. Otherwise raises ActorQError with the fault.

    Steps count only when no pod with an earlier version of the workloads remains, because it may have made them. The
    function tolerates an API server that is unreachable or overloaded for a while.

    ask: returns the learner's status. Raises UnavailableError while the learner does not answer.
    until_over: return only when the run is over. away_s: seconds between attempts to reach the API server.
    """
    deadline = time.monotonic() + timeout_s
    wait = _Wait(cluster, ask, watcher, until_over)
    away = False
    while True:
        try:
            if (end := wait.poll()) is not None:
                return end
            away = False
            if time.monotonic() >= deadline:
                raise ActorQError(wait.failure(timeout_s))
            cluster.await_pod_change(cluster.selector, _LONG_CHANGE_S if until_over else _CHANGE_S)
        except (UnavailableError, UnreachableError) as error:
            if time.monotonic() >= deadline:
                raise ActorQError(f"no news of the run in {timeout_s:.0f} s: {error}") from error
            if not away:
                watcher.event(f"no news of the run: {error}")
            away = True
            time.sleep(away_s)


class _Wait:
    def __init__(self, cluster: Cluster, ask: Callable[[], RunStatus], watcher: Watcher, until_over: bool) -> None:
        self._cluster = cluster
        self._ask = ask
        self._watcher = watcher
        self._until_over = until_over
        self._phases: dict[str, str] = {}
        self._said: set[str] = set()
        self._pods: list[Object] = []
        self._first: RunStatus | None = None
        self._status: RunStatus | None = None
        self._rolled_out = False
        self._is_training_run = False

    def poll(self) -> RunStatus | RecordedEnd | None:
        """Check the run once and report its news. Returns the awaited status; None until it is reached."""
        workloads, self._pods = _workloads(self._cluster), pods_of(self._cluster)
        self._is_training_run = self._is_training_run or is_training_run(self._cluster, workloads)
        recorded = recorded_end(self._cluster) if self._is_training_run else None
        if not (self._is_training_run or workloads or self._pods):
            raise ActorQError(f"the run is gone: namespace {self._cluster.namespace} has none of its objects")
        self._rolled_out = self._rolled_out or all(map(is_rolled_out, workloads))
        views = [view(pod) for pod in self._pods]
        for pod in views:
            phase = "ready" if pod.ready else pod.phase
            if self._phases.get(pod.name) != phase:
                self._phases[pod.name] = phase
                self._watcher.event(f"{pod.name}: {phase}")
        if recorded is None:
            _check_pods(self._cluster, self._pods, self._said, self._watcher)
        status = self._status = self._asked() if any(each.role == "learner" and each.ready for each in views) else None
        if status is None or not self._rolled_out:
            return recorded
        self._first = self._first or status
        has_progress = status.environment_steps > self._first.environment_steps
        # For a TrainingRun, the learner may belong to an earlier run with its name.
        over = status.state.final and not self._is_training_run
        return status if over or (has_progress and not self._until_over) else recorded

    def failure(self, timeout_s: float) -> str:
        """The error text for a run that was not done in time."""
        if self._until_over and self._status is not None:
            return f"the run is not over in {timeout_s:.0f} s: it is {self._status.state.value}"
        missing = _what_is_missing(self._cluster, self._pods, self._status)
        return f"no progress in {timeout_s:.0f} s: {missing}"

    def _asked(self) -> RunStatus | None:
        with suppress(UnavailableError):
            status = self._ask()
            self._watcher.status(status)
            return status
        return None


def serious(pods: Sequence[Object], now: float) -> tuple[list[Fault], list[Fault]]:
    """The faults that stop the run, and the others: one of several actors is missing, or a pod will recover."""
    views = [view(pod) for pod in pods]
    acting = any(each.role == "actor" and each.ready for each in views)
    fatal: list[Fault] = []
    bearable: list[Fault] = []
    for pod, seen in zip(pods, views, strict=True):
        if (fault := pod_fault(pod, now)) is not None:
            missing = acting and fault.reason == UNSCHEDULABLE and seen.role == "actor"
            (bearable if missing or fault.reason == CRASHED else fatal).append(fault)
    return fatal, bearable


def _check_pods(cluster: Cluster, pods: Sequence[Object], said: set[str], watcher: Watcher) -> None:
    fatal, bearable = serious(pods, time.time())
    if fatal:
        # An outdated pod may still show an error that the new version has fixed.
        workloads, replica_sets = _workloads(cluster), cluster.list("apps/v1", "ReplicaSet", cluster.selector)
        current = [pod for pod in pods if not is_outdated(pod, workloads, replica_sets)]
        fatal, bearable = serious(current, time.time())
    if not {view(pod).role for pod in pods} >= {"learner", "quantizer", "actor"}:
        events = cluster.list("v1", "Event")
        workloads = [each for each in _workloads(cluster) if each["spec"].get("replicas", 1)]
        fatal += [fault for each in workloads if (fault := workload_fault(each, events))]
    for fault in fatal:
        line = last_log_line(cluster, fault.subject.removeprefix("pod "), fault.container) if fault.container else ""
        raise ActorQError(fault.line(line))
    for fault in bearable:
        if fault.subject not in said:
            said.add(fault.subject)
            watcher.event(fault.line())


def _workloads(cluster: Cluster) -> list[Object]:
    return [each for kind in ("StatefulSet", "Deployment") for each in cluster.list("apps/v1", kind, cluster.selector)]


def _what_is_missing(cluster: Cluster, pods: Sequence[Object], status: RunStatus | None) -> str:
    events = cluster.list("v1", "Event")
    for pod in pods:
        if not view(pod).ready:
            return f"pod {pod['metadata']['name']} is not ready ({waiting_for(pod, events)})"
    if not any(view(pod).role == "learner" for pod in pods):
        return "there is no pod of the learner; `kubectl describe statefulset` may say why"
    if old := [each for each in _workloads(cluster) if not is_rolled_out(each)]:
        return f"{old[0]['kind']} {old[0]['metadata']['name']} still has pods of an earlier version"
    if status is None:
        return (
            "the learner's pod is ready but does not answer; where the run uses mutual TLS, give the folder of the "
            "certificates with --certificates"
        )
    if not status.quantizer_connected:
        return "the learner does not reach the quantizer; see `actorq cluster logs learner`"
    if status.problem:
        return f"the learner refused {status.problem}"
    if not status.actors:
        return "no actor has joined the learner; see `actorq cluster logs actors`"
    return f"the run is {status.state.value} at {status.environment_steps:,} environment steps"
