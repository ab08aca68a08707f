"""The events of a TrainingRun: milestones and faults, as `kubectl describe` shows them."""

import hashlib
import json
import re
from datetime import datetime

from actorq.text import return_text
from actorq_apps.cluster.diagnosis import Fault
from actorq_apps.cluster.objects import Object, items, name_of, part
from actorq_apps.operator.resource.training_run import API_VERSION, KIND
from actorq_apps.operator.status.conditions import FINAL, INTERRUPTED, MESSAGE_CHARACTERS, SUSPENDED
from actorq_apps.operator.status.observed_run import FAILED, ObservedRun, role_of, timestamp

COMPONENT = "actorq-operator"
# A fault is reported again after the run has worked for this long.
_LONG_S = 600.0
# Reasons of a run that is not ready but has no fault.
_NO_FAULTS = ("Starting", "BackoffLimitExceeded", INTERRUPTED, SUSPENDED, *FINAL)


def new_events(observed: ObservedRun, after: Object, fault: Fault | None) -> list[Object]:
    """The events of the change to a new status, for the API server. fault: the fault that the new status reports.

    Their names follow from the change. An operator that was killed before it wrote the status creates the same names
    again, and the API server refuses them.
    """
    before = observed.before
    state, earlier = str(after["state"]), before.get("state", "")
    steps = f"at {after.get('environmentSteps', 0):,} environment steps"
    change = (before.get("conditions"), earlier)
    # Kind, reason, message, and a key that distinguishes the event from others with this reason.
    events: list[tuple[str, str, str, object]] = []
    if "startedAt" in after and "startedAt" not in before:
        # A short run may be over before its status shows training.
        events.append(("Normal", "Started", f"the learner began at {after['startedAt']}", ""))
    if after.get("policyVersion") and not before.get("policyVersion"):
        events.append(("Normal", "FirstPolicy", "the quantizer serves the first policy", ""))
    if "return" in after and "return" not in before:
        mean_return = return_text(after["return"])
        events.append(("Normal", "FirstEvaluation", f"mean return {mean_return} in the first evaluation", ""))
    if state != earlier and state == FAILED:
        events.append(("Warning", after["conditions"][0]["reason"], after["conditions"][0]["message"], ""))
    elif state != earlier and state in FINAL:
        events.append(("Normal", state, f"the run is {state} {steps}", ""))
        if "policyExport" in part(observed.resource, "spec"):
            lost = ("Warning", "PolicyNotExported", "the learner's log says why the policy is not exported", "")
            events.append(("Normal", "PolicyExported", str(after["policy"]), "") if "policy" in after else lost)
    elif state != earlier and state == SUSPENDED:
        events.append(("Normal", state, f"the run is {state} {steps}", change))
    elif state != earlier and state == INTERRUPTED:
        events.append(("Warning", state, f"the learner is gone {steps}; the next one continues the run", change))
    elif state != earlier and earlier in (INTERRUPTED, SUSPENDED) and observed.live is not None:
        events.append(("Normal", "Resumed", f"the run continues {steps}", change))
    ready = after["conditions"][0]
    worked = next((each for each in items(before, "conditions") if each.get("type") == "Ready"), {})
    said, earlier_said = ((each.get("reason"), _shape(str(each.get("message")))) for each in (ready, worked))
    if ready["status"] == "False" and said != earlier_said and ready["reason"] not in _NO_FAULTS:
        # Each fault is reported once, however often it recurs. It is reported again after the run has worked for long.
        key = [_about(observed, fault), _worked_since(observed, worked)]
        events.append(("Warning", ready["reason"], ready["message"], key))
    return [_event(observed, *each) for each in events]


def of_another_operator(observed: ObservedRun, home: str) -> Object:
    """The event for a run that the operator in its own namespace manages. home: the namespace of this operator."""
    namespace = observed.resource["metadata"]["namespace"]
    message = (
        f"the operator in namespace {namespace} manages this run, and the operator in namespace {home} ignores it: "
        "uninstall one of them if this is not intended"
    )
    return _event(observed, "Warning", "OtherOperator", message, home)


def _shape(text: str) -> str:
    """A message without its numbers, which may change while the fault stays: restarts, nodes, bytes."""
    return re.sub(r"\d+", "0", text)


def _about(observed: ObservedRun, fault: Fault | None) -> str:
    """A key that distinguishes a fault from others with its reason. The pods of a role share it."""
    if fault is None:
        return ""
    roles = {f"pod {name_of(each)}": role_of(each) for each in observed.pods}
    return f"{roles.get(fault.subject, fault.subject)} {_shape(fault.text)}"


def _worked_since(observed: ObservedRun, ready: Object) -> str:
    """Start of a run's healthy time, if that has lasted long; empty otherwise."""
    since = str(ready.get("lastTransitionTime") or "")
    if ready.get("status") != "True" or observed.now - datetime.fromisoformat(since).timestamp() < _LONG_S:
        return ""
    return since


def _event(observed: ObservedRun, kind: str, reason: str, message: str, key: object) -> Object:
    metadata, at = observed.resource["metadata"], timestamp(observed.now)
    digest = hashlib.sha256(json.dumps([metadata["uid"], reason, key], sort_keys=True).encode()).hexdigest()[:16]
    run = {name: metadata[name] for name in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, **run},
        "type": kind,
        "reason": reason,
        "message": message[:MESSAGE_CHARACTERS],
        "source": {"component": COMPONENT},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
