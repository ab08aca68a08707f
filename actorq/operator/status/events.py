"""The events of a TrainingRun: milestones and faults, as `kubectl describe` shows them."""

import hashlib
import json

from actorq.cluster.objects import Object, items, part
from actorq.operator.resource.training_run import API_VERSION, KIND
from actorq.operator.status.conditions import FINAL, INTERRUPTED, MESSAGE_CHARACTERS, SUSPENDED
from actorq.operator.status.look import FAILED, Look, timestamp

COMPONENT = "actorq-operator"
# Reasons of a run that is not ready and has no fault.
_NO_FAULTS = ("Starting", "BackoffLimitExceeded", INTERRUPTED, SUSPENDED, *FINAL)


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
    if state != earlier and state == FAILED:
        told.append(("Warning", after["conditions"][0]["reason"], after["conditions"][0]["message"], ""))
    elif state != earlier and state in FINAL:
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


def _event(look: Look, kind: str, reason: str, message: str, key: object) -> Object:
    metadata, at = look.resource["metadata"], timestamp(look.now)
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
