"""The objects and the learner's status of a run at one time, and the worst fault among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from actorq.domain.status import RunStatus
from actorq_apps.cluster.diagnosis import UNSCHEDULABLE, Fault, view, volume_fault, workload_fault
from actorq_apps.cluster.manifests import component_of
from actorq_apps.cluster.objects import COMPONENT_LABEL, Object, items, part
from actorq_apps.cluster.progress import serious
from actorq_apps.operator.render import CORE, WORKERS

FAILED = "Failed"
"""The state of a run that was restarted too often."""


@dataclass(frozen=True)
class ObservedRun:
    """The operator's observations of a run at one time.

    resource: the TrainingRun. pods: those that have not ended permanently.
    workloads, volumes: its other objects; objects from a list need their kind.
    live: the learner's status; None when it does not answer. earlier: the status at the previous reconciliation.
    refusal: why the objects of the run could not be created. now: Unix seconds.
    awaited: whether this operator's first request to the learner is still unanswered.
    blind: whether the operator may not read workloads and pods. Earlier knowledge about them stays.
    waits: whether the actors have no pods yet, because the learner or the quantizer has no node.
    """

    resource: Object
    now: float
    live: RunStatus | None = None
    earlier: RunStatus | None = None
    pods: Sequence[Object] = ()
    workloads: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    events: Sequence[Object] = ()
    refusal: Fault | None = None
    awaited: bool = False
    blind: bool = False
    waits: bool = False

    @property
    def before(self) -> Object:
        """The current status of the object."""
        return part(self.resource, "status")

    @property
    def suspended(self) -> bool:
        """Whether the object requests no pods at all."""
        return part(self.resource, "spec").get("suspend") is True

    @property
    def over(self) -> bool:
        """Whether the run has ended permanently."""
        return "finishedAt" in self.before or self.failed or (self.live is not None and self.live.state.final)

    @property
    def failed(self) -> bool:
        """Whether the run has ended because it was restarted too often."""
        if "finishedAt" in self.before:
            return self.before.get("state") == FAILED
        limit = part(self.resource, "spec").get("backoffLimit")
        ended = self.live is not None and self.live.state.final
        return not ended and isinstance(limit, int) and self.restarts[0] > limit

    @property
    def restarts(self) -> tuple[int, list[Object]]:
        """The restarts of learner and quantizer so far, and, as in the status, the restarts of their current pods.

        A pod that moves to another node begins at 0. The status stores the restarts of earlier pods.
        """
        total, counted = int(self.before.get("restarts") or 0), items(self.before, "restartsOfPods")
        if self.blind:
            return total, counted
        known = {each.get("uid"): int(each.get("restarts") or 0) for each in counted}
        found: list[Object] = []
        for pod in self.pods:
            count, uid = view(pod).restarts, pod["metadata"].get("uid")
            if role_of(pod) in CORE and count:
                total += max(0, count - known.get(uid, 0))
                found.append({"uid": uid, "restarts": count})
        return total, sorted(found, key=lambda each: str(each["uid"]))

    @property
    def resting(self) -> tuple[str, ...]:
        """The components that must have no pods now."""
        if self.suspended or self.failed:
            return (*CORE, *WORKERS)
        return WORKERS if self.over or self.waits else ()


def find_fault(observed: ObservedRun) -> Fault | None:
    """The most important reason why the run does not work; None when no fault is known."""
    if observed.refusal is not None:
        return observed.refusal
    if observed.suspended or observed.over:
        return None
    fatal, bearable = serious(observed.pods, observed.now)
    found = [fault for fault in fatal if fault.reason != UNSCHEDULABLE]
    # A pod without a volume is unschedulable, too, but the volume's fault has more details.
    found += [fault for each in observed.volumes if (fault := volume_fault(each, observed.events, observed.now))]
    lacking = [each for each in observed.workloads if lacks_pods(each)]
    found += [fault for each in lacking if (fault := workload_fault(each, observed.events))]
    found += [*(fault for fault in fatal if fault.reason == UNSCHEDULABLE), *bearable]
    return found[0] if found else None


def waits(pods: Sequence[Object], workloads: Sequence[Object]) -> bool:
    """Whether actors, relays and evaluator must have no pods yet, because a component that they wait for has no node.

    Once they may have pods, they keep them, even while the learner moves. workloads: the run's workloads.
    """
    working = any(component_of(each) in WORKERS and part(each, "spec").get("replicas") != 0 for each in workloads)
    staying = [each for each in pods if not each["metadata"].get("deletionTimestamp")]
    placed = {role_of(each) for each in staying if part(each, "spec").get("nodeName")}
    return not working and not placed >= set(CORE)


def lacks_pods(workload: Object) -> bool:
    """Whether a Deployment or StatefulSet has fewer pods than it should, ready or not."""
    wanted = int(part(workload, "spec").get("replicas", 1))
    return int(part(workload, "status").get("replicas") or 0) < wanted


def role_of(pod: Object) -> str:
    """The component of a pod."""
    return str(part(pod, "metadata", "labels").get(COMPONENT_LABEL, ""))


def is_ready(pod: Object) -> bool:
    """Whether a pod answers calls and is not ending."""
    true = {each.get("type") for each in items(part(pod, "status"), "conditions") if each.get("status") == "True"}
    return "Ready" in true and not pod["metadata"].get("deletionTimestamp")


def timestamp(seconds: float) -> str:
    """Unix seconds in the time format of Kubernetes."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
