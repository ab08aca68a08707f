"""Waits until a newly applied run makes progress, and reports what prevents it."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from actorq.cluster.access import pods_of
from actorq.cluster.connection import Cluster
from actorq.cluster.diagnosis import Fault, is_outdated, is_rolled_out, pod_fault, view, waiting_for, workload_fault
from actorq.cluster.logs import last_log_line
from actorq.cluster.objects import Object
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, UnavailableError
from actorq.local.observer import Watcher

_CHANGE_S, _LONG_CHANGE_S = 1, 5


def await_progress(
    cluster: Cluster,
    ask: Callable[[], RunStatus],
    timeout_s: float,
    watcher: Watcher,
    until_over: bool = False,
) -> RunStatus:
    """Return once environment steps have grown, or the run is over. Raises ActorQError with the fault otherwise.

    Steps count only when no pod of an earlier version of the workloads is left, because such a pod may have made them.

    ask: returns the learner's status. Raises UnavailableError while the learner does not answer.
    until_over: return only when the run is over.
    """
    deadline = time.monotonic() + timeout_s
    phases: dict[str, str] = {}
    said: set[str] = set()
    first: RunStatus | None = None
    rolled_out = False
    while True:
        rolled_out = rolled_out or all(map(is_rolled_out, _workloads(cluster)))
        pods = pods_of(cluster)
        views = [view(pod) for pod in pods]
        for pod in views:
            phase = "ready" if pod.ready else pod.phase
            if phases.get(pod.name) != phase:
                phases[pod.name] = phase
                watcher.event(f"{pod.name}: {phase}")
        _check_pods(cluster, pods, said, watcher)
        status = None
        if any(each.role == "learner" and each.ready for each in views):
            with suppress(UnavailableError):
                status = ask()
        if status is not None:
            watcher.status(status)
        if status is not None and rolled_out:
            first = first or status
            has_progress = status.environment_steps > first.environment_steps
            if status.state.final or (has_progress and not until_over):
                return status
        if time.monotonic() >= deadline:
            if until_over and status is not None:
                raise ActorQError(f"the run is not over in {timeout_s:.0f} s: it is {status.state.value}")
            raise ActorQError(f"no progress in {timeout_s:.0f} s: {_what_is_missing(cluster, pods, status)}")
        cluster.await_pod_change(cluster.selector, _LONG_CHANGE_S if until_over else _CHANGE_S)


def serious(pods: Sequence[Object], now: float) -> tuple[list[Fault], list[Fault]]:
    """The faults that stop the run, and the others. For example, one of several actors may be missing."""
    views = [view(pod) for pod in pods]
    acting = any(each.role == "actor" and each.ready for each in views)
    fatal: list[Fault] = []
    bearable: list[Fault] = []
    for pod, seen in zip(pods, views, strict=True):
        if (fault := pod_fault(pod, now)) is not None:
            (bearable if acting and fault.unplaced and seen.role == "actor" else fatal).append(fault)
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
    """The run's StatefulSets and Deployments."""
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
