"""Finds out why a pod does not run, from its object. Gives one line with the remedy."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from actorq.process import EXIT_USER_ERROR
from actorq_apps.cluster.objects import COMPONENT_LABEL, Object, items, name_of, part

# The scheduler needs some time, for example to bind a volume or add a node.
PATIENCE_S = 20.0

UNSCHEDULABLE = "Unschedulable"
"""Reason for a pod that is correct but fits on no node."""
CRASHED = "Crashed"
"""Reason for a container that worked for a long time and is being restarted."""
# A container that ran for this long is not in a crash loop. The kubelet restarts it without long pauses.
_STABLE_S = 600.0

# The versions of a workload: a label of a StatefulSet's pods, and an annotation of a Deployment's ReplicaSet.
_STATEFUL_REVISION = "controller-revision-hash"
_REVISION = "deployment.kubernetes.io/revision"
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"

# Events of a claim that gets its volume only after its pod has a node. The fault is the reason why the pod has no node.
_AWAITS_POD = ("WaitForFirstConsumer", "WaitForPodScheduled")

_BAD_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
_BAD_CONTAINER = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True)
class PodView:
    """A pod in the terms that users know. container: whose log is the pod's; empty if it has only one container."""

    name: str
    role: str
    phase: str
    ready: bool
    restarts: int
    container: str = ""


@dataclass(frozen=True)
class Fault:
    """The reason why something does not run. `container`: its last log line has more details.

    reason: a word for conditions of objects, such as CrashLoop.
    """

    subject: str
    text: str
    container: str | None = None
    reason: str = ""

    def line(self, more: str = "") -> str:
        """The fault in one line. more: the container's log line, or where to find it."""
        return f"{self.subject} {self.text}{f': {more}' if more else ''}"


def live_pods(pods: Iterable[Object]) -> list[Object]:
    """The pods that have not ended permanently. An evicted pod's object remains after a ReplicaSet replaces it."""
    return [each for each in pods if part(each, "status").get("phase") not in ("Failed", "Succeeded")]


def view(pod: Object) -> PodView:
    """The state of a pod in the words of `kubectl get pods`."""
    metadata, containers = pod["metadata"], _containers(pod)
    works = bool(containers) and all(each.get("ready") for each in containers)
    return PodView(
        name=metadata["name"],
        role=part(metadata, "labels").get(COMPONENT_LABEL, ""),
        phase=_phase(pod, containers),
        ready=works and not metadata.get("deletionTimestamp"),
        restarts=sum(int(each.get("restartCount", 0)) for each in containers),
        container=_main_container(pod),
    )


def pod_fault(pod: Object, now: float) -> Fault | None:
    """A permanent fault of a pod; None when the pod runs or may run soon. now: Unix seconds."""
    if pod["metadata"].get("deletionTimestamp") or not live_pods([pod]):
        return None
    subject = f"pod {name_of(pod)}"
    for container in _containers(pod):
        if (found := _container_fault(subject, container)) is not None:
            return found
    status = part(pod, "status")
    # If a node is nominated, the pod only waits for the end of other pods on that node.
    for condition in [] if status.get("nominatedNodeName") else items(status, "conditions"):
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            since = _seconds(condition.get("lastTransitionTime"))
            if since is None or now - since >= PATIENCE_S:
                return Fault(subject, f"cannot be scheduled: {_sentence(condition)}", reason=UNSCHEDULABLE)
    return None


def workload_fault(workload: Object, events: Iterable[Object]) -> Fault | None:
    """Why a Deployment or StatefulSet cannot create pods: a quota, a policy, a missing ServiceAccount."""
    status = part(workload, "status")
    failed = "ReplicaFailure", "True"
    said = [each for each in items(status, "conditions") if (each["type"], each["status"]) == failed]
    if not status.get("replicas"):
        said += [each for each in _events_of(workload, events) if each.get("reason") == "FailedCreate"]
    if not said:
        return None
    text = _sentence(said[0])
    reason = "Quota" if "exceeded quota" in text else "CannotCreatePods"
    return Fault(f"{workload['kind']} {name_of(workload)}", f"cannot create pods: {text}", reason=reason)


def volume_fault(volume: Object, events: Iterable[Object], now: float) -> Fault | None:
    """Why a volume claim gets no volume. now: Unix seconds."""
    since = _seconds(volume["metadata"].get("creationTimestamp"))
    if part(volume, "status").get("phase") != "Pending" or since is None or now - since < PATIENCE_S:
        return None
    newest = next(_events_of(volume, events), None)
    if newest is not None and newest.get("reason") in _AWAITS_POD:
        return None
    text = "; its StorageClass gives none" if newest is None else f": {_sentence(newest)}"
    return Fault(f"volume {name_of(volume)}", f"is pending{text}", reason="VolumePending")


def is_rolled_out(workload: Object) -> bool:
    """Whether all pods of a Deployment or StatefulSet, ready or not, have its current version."""
    status = part(workload, "status")
    if not _is_observed(workload):
        return False
    if "updateRevision" in status:
        return bool(status["updateRevision"] == status.get("currentRevision"))
    there, updated = int(status.get("replicas") or 0), int(status.get("updatedReplicas") or 0)
    return there == updated >= min(1, int(workload["spec"].get("replicas", 1)))


def is_outdated(pod: Object, workloads: Sequence[Object], replica_sets: Sequence[Object]) -> bool:
    """Whether a pod has an earlier version of its workload and will be replaced."""
    owner = _owner(pod)
    if owner is None:
        return False
    revision = part(pod, "metadata", "labels").get(_STATEFUL_REVISION)
    if owner[0] == "ReplicaSet":
        replica_set = next((each for each in replica_sets if name_of(each) == owner[1]), None)
        owner = _owner(replica_set) if replica_set else None
        if replica_set is None or owner is None:
            return True
        revision = part(replica_set, "metadata", "annotations").get(_REVISION)
    workload = next((each for each in workloads if (each["kind"], name_of(each)) == owner), None)
    if workload is None or not _is_observed(workload):
        return True
    now = part(workload, "status").get("updateRevision")
    return bool(revision != (now or part(workload, "metadata", "annotations").get(_REVISION)))


def waiting_for(pod: Object, events: Sequence[Object]) -> str:
    """The reason why a pod is not ready: its newest warning, or its phase."""
    status = part(pod, "status")
    if (node := status.get("nominatedNodeName")) and not status.get("containerStatuses"):
        return f"other pods make room for it on node {node}"
    warnings = (_sentence(each) for each in _events_of(pod, events) if each.get("type") == "Warning")
    return next(warnings, view(pod).phase)


def newest_first(events: Iterable[Object]) -> list[Object]:
    """Events in the order of their last occurrence, newest first."""
    return sorted(
        events, key=lambda event: _seconds(event.get("lastTimestamp") or event.get("eventTime")) or 0, reverse=True
    )


def _events_of(found: Object, events: Iterable[Object]) -> Iterator[Object]:
    """The events of one object, newest first."""
    uid = found["metadata"].get("uid")
    return (each for each in newest_first(events) if each["involvedObject"].get("uid") == uid)


def _is_observed(workload: Object) -> bool:
    """Whether the controller has seen the current version of the workload."""
    observed = part(workload, "status").get("observedGeneration")
    return int(observed or 0) >= int(workload["metadata"].get("generation") or 0)


def _owner(child: Object) -> tuple[str, str] | None:
    owners = items(child["metadata"], "ownerReferences")
    return (owners[0]["kind"], owners[0]["name"]) if owners else None


def _containers(pod: Object) -> list[Object]:
    status = part(pod, "status")
    return [*items(status, "initContainerStatuses"), *items(status, "containerStatuses")]


def _main_container(pod: Object) -> str:
    """The container that kubectl uses by default; empty if the pod has only one."""
    names = [str(each.get("name")) for each in items(part(pod, "spec"), "containers")]
    chosen = part(pod, "metadata", "annotations").get(_DEFAULT_CONTAINER)
    return "" if len(names) < 2 else str(chosen or names[0])


def _container_fault(subject: str, status: Object) -> Fault | None:
    state, waiting = part(status, "state"), part(status, "state", "waiting")
    reason = waiting.get("reason", "")
    if reason in _BAD_IMAGE:
        text = f"cannot pull image {status.get('image', '')} ({_sentence(waiting) or reason})"
        remedy = "push it, or choose another under `images` in kustomization.yaml or in the TrainingRun"
        return Fault(subject, f"{text}: {remedy}", reason="ImagePull")
    if reason in _BAD_CONTAINER:
        return Fault(subject, f"cannot start: {_sentence(waiting) or reason}", reason="CannotStart")
    ended = state.get("terminated") or part(status, "lastState", "terminated")
    if reason != "CrashLoopBackOff" and not state.get("terminated"):
        return None
    how = f"killed, {ended['reason']}" if ended.get("reason") == "OOMKilled" else f"exit code {ended.get('exitCode')}"
    if ended.get("exitCode") == EXIT_USER_ERROR:
        text = f"ended at once ({how}: its settings do not work)"
        return Fault(subject, text, status["name"], "InvalidConfiguration")
    # The first crash may be a race with another service. The second crash is not.
    restarts = int(status.get("restartCount", 0))
    if restarts <= 1 or not ended.get("exitCode"):
        return None
    began, end = (_seconds(ended.get(name)) or 0.0 for name in ("startedAt", "finishedAt"))
    text, word = ("has crashed", CRASHED) if end - began >= _STABLE_S else ("is crash looping", "CrashLoop")
    return Fault(subject, f"{text} ({how}, {restarts} restarts)", status["name"], word)


def _phase(pod: Object, containers: Sequence[Object]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for container in containers:
        for kind in ("waiting", "terminated"):
            if (reason := part(container, "state", kind).get("reason")) not in (None, "", "Completed"):
                return str(reason)
    status = part(pod, "status")
    return str(status.get("reason") or status.get("phase", "Unknown"))


def _sentence(said: Object) -> str:
    return " ".join(str(said.get("message") or "").split()).rstrip(".")


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
