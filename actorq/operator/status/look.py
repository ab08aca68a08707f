"""A look: the objects and the learner's status of a run at one time, and the worst fault that they show."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from actorq.cluster.diagnosis import Fault, volume_fault, workload_fault
from actorq.cluster.objects import COMPONENT_LABEL, Object, items, part
from actorq.cluster.progress import serious
from actorq.domain.status import RunStatus


@dataclass(frozen=True)
class Look:
    """What the operator has seen of a run at one time.

    resource: the TrainingRun. pods: those that have not ended for good.
    workloads, volumes: its other objects; those of a list need their kind.
    live: the status from the learner; None when it does not answer. earlier: that of the look before.
    refusal: why the objects of the run could not be made. now: Unix seconds.
    awaited: whether this operator has asked the learner for the first time, and does not know yet whether it answers.
    blind: whether the operator may not see workloads and pods. What was known of them stays.
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

    @property
    def before(self) -> Object:
        """The status that the object has."""
        return part(self.resource, "status")

    @property
    def suspended(self) -> bool:
        """Whether the object asks for no pods at all."""
        return part(self.resource, "spec").get("suspend") is True

    @property
    def over(self) -> bool:
        """Whether the run has ended for good."""
        return "finishedAt" in self.before or (self.live is not None and self.live.state.final)


def find_fault(look: Look) -> Fault | None:
    """The most important reason why the run does not work; None when nothing is known to be wrong."""
    if look.refusal is not None:
        return look.refusal
    if look.suspended or look.over:
        return None
    fatal, bearable = serious(look.pods, look.now)
    found = [fault for fault in fatal if not fault.unplaced]
    # A pod without a volume is unschedulable, too: the volume tells more.
    found += [fault for each in look.volumes if (fault := volume_fault(each, look.events, look.now))]
    found += [fault for each in look.workloads if lacks_pods(each) and (fault := workload_fault(each, look.events))]
    found += [*(fault for fault in fatal if fault.unplaced), *bearable]
    return found[0] if found else None


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
    """Unix seconds as Kubernetes writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
