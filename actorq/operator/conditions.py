"""What the operator says about a run: the status of its TrainingRun, and events for milestones and faults.

Everything here is computed from values, without a cluster. The status of the object is the operator's only memory: a
run's end, its last figures and the time of each change are read from there.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from actorq.cluster.diagnosis import Fault, volume_fault, workload_fault
from actorq.cluster.objects import COMPONENT_LABEL, RUN_LABEL, Object, items, part
from actorq.cluster.progress import serious
from actorq.domain.status import RunState, RunStatus
from actorq.operator.resource import GROUP, KIND, VERSION

PENDING, SUSPENDED, INTERRUPTED, REFUSED = "Pending", "Suspended", "Interrupted", "Refused"
FINAL = ("Solved", "BudgetEnded", "Stopped")
# Reasons of a run that cannot begin until somebody changes something.
HOPELESS = ("InvalidConfiguration", "NameInUse", "KindMissing")
COMPONENT = "actorq-operator"
# A learner that waited for data longer than this share of the time since the last look is starved.
# The alert ActorQLearnerStarved has the same share (docs/how-to/monitor.md#alerts).
_STARVED_SHARE = 0.9
# A run needs a moment until its actors have joined.
_JOINING_S = 30.0
_MESSAGE_CHARACTERS = 1024


@dataclass(frozen=True)
class Look:
    """What the operator has seen of a run at one time.

    resource: the TrainingRun. workloads, volumes: its other objects; those of a list need their kind.
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


def state_name(state: RunState) -> str:
    """A state in the style of Kubernetes: WaitingForActors."""
    return "".join(word.capitalize() for word in state.value.split())


STATES = (PENDING, SUSPENDED, REFUSED, *map(state_name, RunState))
"""All states of a TrainingRun."""


def timestamp(seconds: float) -> str:
    """Unix seconds as Kubernetes writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    """Unix seconds of a time that Kubernetes wrote."""
    return datetime.fromisoformat(text).timestamp()


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
    found += [fault for fault in (*fatal, *bearable) if fault.unplaced]
    return found[0] if found else None


def new_status(look: Look, fault: Fault | None, log_line: str = "") -> Object:
    """The status that the object should have."""
    metadata, before, live = look.resource["metadata"], look.before, look.live
    status: dict[str, Any] = {
        **before,
        "state": _state(look, fault),
        "observedGeneration": metadata.get("generation", 0),
        "actors": before.get("actors", 0) if look.blind else _count(look.pods, "actor"),
        "selector": f"{RUN_LABEL}={metadata['name']},{COMPONENT_LABEL}=actor",
    }
    if live is not None:
        status.setdefault("startedAt", timestamp(look.now))
        status["environmentSteps"] = live.environment_steps
        status["stepsPerSecond"] = round(live.environment_steps_per_s, 1)
        status["policyVersion"] = live.policy_version
        if live.evaluation is not None:
            status["return"] = round(live.evaluation.mean_return, 2)
        if live.exported_policy:
            status["policy"] = live.exported_policy
    elif not (look.awaited or look.blind):
        status["stepsPerSecond"] = 0
    if look.over:
        status.setdefault("finishedAt", timestamp(look.now))
        status["stepsPerSecond"] = 0
    status["conditions"] = _conditions(look, str(status["state"]), fault, log_line)
    status["reason"] = status["conditions"][0]["message"]
    return status


def is_news(before: Object, after: Object) -> bool:
    """Whether a new status should be written at once: a state or a condition has changed, not only figures."""

    def essence(status: Object) -> object:
        conditions = [
            (each.get("type"), each.get("status"), each.get("reason")) for each in items(status, "conditions")
        ]
        return status.get("state"), status.get("observedGeneration"), conditions

    return essence(before) != essence(after)


def new_events(look: Look, after: Object) -> list[Object]:
    """The events of the change to a new status, for the API server.

    Their names follow from the change. An operator that was killed before it wrote the status makes the same ones
    again, and the API server refuses them.
    """
    before = look.before
    state, earlier = str(after["state"]), before.get("state", "")
    steps = f"at {after.get('environmentSteps', 0):,} environment steps"
    change = (before.get("conditions"), earlier)
    # Kind, reason, message, and what tells the event from others of its reason.
    told: list[tuple[str, str, str, object]] = []
    if after.get("policyVersion") and not before.get("policyVersion"):
        told.append(("Normal", "FirstPolicy", "the quantizer serves the first policy", ""))
    if "return" in after and "return" not in before:
        told.append(("Normal", "FirstEvaluation", f"mean return {after['return']:g} in the first evaluation", ""))
    if state != earlier and state in FINAL:
        told.append(("Normal", state, f"the run is {state} {steps}", ""))
        if "policyExport" in part(look.resource, "spec"):
            lost = ("Warning", "PolicyNotExported", "the learner's log says why the policy is not exported", "")
            told.append(("Normal", "PolicyExported", str(after["policy"]), "") if "policy" in after else lost)
    elif state != earlier and state == SUSPENDED:
        told.append(("Normal", state, f"the run is {state} {steps}", change))
    elif state != earlier and state == INTERRUPTED:
        told.append(("Warning", state, f"the learner is gone {steps}; the next one continues the run", change))
    elif state != earlier and earlier in (INTERRUPTED, SUSPENDED) and look.live is not None:
        told.append(("Normal", "Resumed", f"the run goes on {steps}", change))
    ready = after["conditions"][0]
    worked = next((each for each in items(before, "conditions") if each.get("type") == "Ready"), {})
    if ready["status"] == "False" and ready["reason"] != worked.get("reason") and ready["reason"] not in _NO_FAULTS:
        # Once for each fault of the run, however often it comes and goes.
        told.append(("Warning", ready["reason"], ready["message"], ""))
    return [_event(look, *each) for each in told]


# Reasons of a run that is not ready and has no fault.
_NO_FAULTS = ("Starting", INTERRUPTED, SUSPENDED, *FINAL)


def _state(look: Look, fault: Fault | None) -> str:
    earlier = str(look.before.get("state") or PENDING)
    if "finishedAt" in look.before or look.blind:
        return earlier
    if look.live is not None:
        return state_name(look.live.state)
    if look.suspended:
        return SUSPENDED
    if "startedAt" not in look.before:
        return REFUSED if fault is not None and fault.reason in HOPELESS else PENDING
    # A ready learner of which this operator has no status yet keeps its state.
    return (
        earlier
        if earlier != SUSPENDED and any(role_of(each) == "learner" and is_ready(each) for each in look.pods)
        else INTERRUPTED
    )


def _conditions(look: Look, state: str, fault: Fault | None, log_line: str) -> list[Object]:
    over = look.over
    text = fault.line(log_line) if fault else ""
    ready, reason, message = True, "Running", "the learner answers and actors act"
    if over:
        ready, reason, message = False, state, f"the run is over: {state}{f'; {text}' if text else ''}"
    elif look.suspended and fault is None:
        ready, reason, message = False, SUSPENDED, "spec.suspend is true"
    elif fault is not None:
        ready, reason, message = False, fault.reason or "Refused", text
    elif look.live is None:
        ready, reason, message = False, "Starting", "the learner does not answer yet"
        if state == INTERRUPTED:
            reason, message = INTERRUPTED, "the learner is gone; the next one continues the run"
    elif look.live.state is RunState.INTERRUPTED:
        ready, reason, message = False, INTERRUPTED, "the learner moves"
    elif not any(actor.connected and actor.role == "actor" for actor in look.live.actors):
        waits = look.live.elapsed_s >= _JOINING_S
        ready, reason, message = False, "NoActors" if waits else "Starting", "no actor has joined the learner"
    training = look.live is not None and look.live.state in (RunState.COLLECTING, RunState.TRAINING)
    starved = training and _is_starved(look)
    failed = not over and "startedAt" not in look.before and fault is not None and fault.reason in HOPELESS
    said = f"the run is {state}"
    made = [
        _condition(look, "Ready", ready, reason, message),
        _condition(
            look,
            "Training",
            training,
            *(("LearnerStarved", "the learner waits for data") if starved else (state, said)),
        ),
        _condition(look, "Solved", state == "Solved", state if over else "NotYet", said),
        _condition(look, "Finished", over, state if over else "NotYet", said),
        _condition(look, "Failed", failed, *((reason, text) if failed else ("NotFailed", said))),
        _condition(
            look,
            "Suspended",
            look.suspended,
            *((SUSPENDED, "spec.suspend is true") if look.suspended else ("Active", "spec.suspend is false")),
        ),
    ]
    if not (look.awaited or look.blind) or over or look.suspended:
        return made
    # Only the learner can say something else than it said to the operator before.
    kept = {each.get("type"): each for each in items(look.before, "conditions")}
    asked = ("Training",) if fault else ("Ready", "Training")
    return [kept.get(each["type"], each) if each["type"] in asked else each for each in made]


def _condition(look: Look, kind: str, holds: bool, reason: str, message: str) -> Object:
    value = str(holds)
    earlier = next((each for each in items(look.before, "conditions") if each.get("type") == kind), {})
    same = earlier.get("status") == value
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message[:_MESSAGE_CHARACTERS],
        "lastTransitionTime": earlier["lastTransitionTime"] if same else timestamp(look.now),
        "observedGeneration": look.resource["metadata"].get("generation", 0),
    }


def _event(look: Look, kind: str, reason: str, message: str, key: object) -> Object:
    metadata, at = look.resource["metadata"], timestamp(look.now)
    digest = hashlib.sha256(json.dumps([metadata["uid"], reason, key], sort_keys=True).encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            **{key: metadata[key] for key in ("name", "namespace", "uid")},
        },
        "type": kind,
        "reason": reason,
        "message": message[:_MESSAGE_CHARACTERS],
        "source": {"component": COMPONENT},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def lacks_pods(workload: Object) -> bool:
    """Whether a Deployment or StatefulSet has fewer pods than it should, ready or not."""
    wanted = int(part(workload, "spec").get("replicas", 1))
    return int(part(workload, "status").get("replicas") or 0) < wanted


def role_of(pod: Object) -> str:
    """The component of a pod."""
    return str(part(pod, "metadata", "labels").get(COMPONENT_LABEL, ""))


def _count(pods: Sequence[Object], role: str) -> int:
    return sum(role_of(pod) == role and not pod["metadata"].get("deletionTimestamp") for pod in pods)


def is_ready(pod: Object) -> bool:
    """Whether a pod answers calls and is not ending."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return any(
        each.get("type") == "Ready" and each.get("status") == "True"
        for each in items(part(pod, "status"), "conditions")
    )


def _is_starved(look: Look) -> bool:
    live, earlier = look.live, look.earlier
    if live is None or earlier is None or live.elapsed_s <= earlier.elapsed_s:
        return False
    return live.starved_s - earlier.starved_s > _STARVED_SHARE * (live.elapsed_s - earlier.elapsed_s)
