"""Computes the status of a TrainingRun: the run's state, figures and conditions.

All functions work on values, without a cluster. The status of the object is the operator's only memory. It stores a
run's end, its last figures and the time of each change.
"""

from typing import Any

from actorq.domain.status import RunState
from actorq_apps.cluster.diagnosis import Fault
from actorq_apps.cluster.objects import COMPONENT_LABEL, RUN_LABEL, Object, items, part
from actorq_apps.cluster.training_runs import state_name
from actorq_apps.operator.render import CORE
from actorq_apps.operator.status.observed_run import FAILED, ObservedRun, is_ready, role_of, timestamp

PENDING, SUSPENDED, INTERRUPTED, REFUSED = "Pending", "Suspended", "Interrupted", "Refused"
FINAL = ("Solved", "BudgetEnded", "Stopped", FAILED)
# Reasons why a run cannot begin until somebody changes something.
HOPELESS = ("InvalidConfiguration", "NameInUse", "KindMissing", "NoSecret")
# A learner is starved if it waited for data longer than this share of the time since the last reconciliation.
# The alert ActorQLearnerStarved uses the same share (docs/how-to/monitor.md#alerts).
_STARVED_SHARE = 0.9
# The actors of a new run need this time to join.
_JOINING_S = 30.0
MESSAGE_CHARACTERS = 1024


STATES = (PENDING, SUSPENDED, REFUSED, *map(state_name, RunState), FAILED)
"""All states of a TrainingRun."""


def new_status(observed: ObservedRun, fault: Fault | None) -> Object:
    """The status that the object should have."""
    metadata, before, live = observed.resource["metadata"], observed.before, observed.live
    actors = [
        each for each in observed.pods if role_of(each) == "actor" and not each["metadata"].get("deletionTimestamp")
    ]
    status: dict[str, Any] = {
        **before,
        "state": _state(observed, fault),
        "observedGeneration": metadata.get("generation", 0),
        "actors": before.get("actors", 0) if observed.blind else len(actors),
        "selector": f"{RUN_LABEL}={metadata['name']},{COMPONENT_LABEL}=actor",
    }
    if live is not None:
        # The operator may have been down when the run began.
        status.setdefault("startedAt", timestamp(observed.now - live.elapsed_s))
        status["environmentSteps"] = live.environment_steps
        status["elapsedSeconds"] = round(live.elapsed_s, 1)
        status["stepsPerSecond"] = round(live.environment_steps_per_s, 1)
        status["policyVersion"] = live.policy_version
        if live.evaluation is not None:
            status["return"] = round(live.evaluation.mean_return, 2)
        if live.exported_policy:
            status["policy"] = live.exported_policy
    elif not (observed.awaited or observed.blind):
        status["stepsPerSecond"] = 0
    if any(restarts := observed.restarts) or "restartsOfPods" in before:
        status["restarts"], status["restartsOfPods"] = restarts
    if observed.over:
        status.setdefault("finishedAt", timestamp(observed.now))
        status["stepsPerSecond"] = 0
    status["conditions"] = _conditions(observed, str(status["state"]), fault)
    status["reason"] = status["conditions"][0]["message"]
    return status


def is_news(before: Object, after: Object) -> bool:
    """Whether a new status should be written at once: a state or a condition has changed, not only figures."""

    def essence(status: Object) -> object:
        conditions = [[each.get(name) for name in ("type", "status", "reason")] for each in items(status, "conditions")]
        return status.get("state"), status.get("observedGeneration"), conditions

    return essence(before) != essence(after)


def _state(observed: ObservedRun, fault: Fault | None) -> str:
    earlier = str(observed.before.get("state") or PENDING)
    if "finishedAt" in observed.before or observed.blind:
        return earlier
    if observed.failed:
        return FAILED
    if observed.live is not None:
        return state_name(observed.live.state)
    if observed.suspended:
        return SUSPENDED
    if "startedAt" not in observed.before:
        return REFUSED if fault is not None and fault.reason in HOPELESS else PENDING
    # If the operator has no status yet from a ready learner, the state stays the same.
    has_learner = any(role_of(each) == "learner" and is_ready(each) for each in observed.pods)
    return earlier if earlier != SUSPENDED and has_learner else INTERRUPTED


def _conditions(observed: ObservedRun, state: str, fault: Fault | None) -> list[Object]:
    over = observed.over
    kept = {each.get("type"): each for each in items(observed.before, "conditions")}
    text = fault.line(_log_command(observed, fault)) if fault else ""
    unplaced = observed.waits and observed.refusal is None
    placing = "actors wait until learner and quantizer have nodes" if unplaced else ""
    # An offline run has no actors. It begins when its evaluator has joined.
    offline = part(observed.resource, "spec", "config").get("offline") is True
    role, work = ("evaluator", "trains from stored data") if offline else ("actor", "actors act")
    ready, reason, message = True, "Running", f"the learner answers and {work}"
    if observed.failed:
        text = str(kept["Failed"]["message"]) if "finishedAt" in observed.before else _end_of_failed(observed)
        ready, reason, message = False, "BackoffLimitExceeded", text
    elif over:
        # The run is complete. Tools that apply objects wait for this (kstatus: Flux, Helm, Argo).
        ready, reason, message = not text, state, f"the run is over: {state}{f'; {text}' if text else ''}"
    elif observed.suspended and fault is None:
        ready, reason, message = False, SUSPENDED, "spec.suspend is true"
    elif fault is not None:
        ready, reason, message = False, fault.reason or "Refused", f"{text}; {placing}" if placing else text
    elif observed.live is None:
        ready, reason, message = False, "Starting", placing or "the learner does not answer yet"
        if state == INTERRUPTED:
            reason, message = INTERRUPTED, placing or "the learner is gone; the next one continues the run"
    elif observed.live.state is RunState.INTERRUPTED:
        ready, reason, message = False, INTERRUPTED, "the learner moves"
    elif not any(actor.connected and actor.role == role for actor in observed.live.actors):
        waits = observed.live.elapsed_s >= _JOINING_S
        missing = "the evaluator has not joined the learner" if offline else _without_actors(observed)
        ready, reason, message = False, "NoActors" if waits else "Starting", missing
    # The learner of a suspended run still answers while it saves.
    trains = observed.live is not None and observed.live.state in (RunState.COLLECTING, RunState.TRAINING)
    training = trains and not observed.suspended
    starved = training and _is_starved(observed)
    hopeless = not over and "startedAt" not in observed.before and fault is not None and fault.reason in HOPELESS
    failed = observed.failed or hopeless
    said, end = f"the run is {state}", state if over else "NotYet"
    active = False, "Active", "spec.suspend is false"
    conditions = {
        "Ready": (ready, reason, message),
        "Training": (training, *(("LearnerStarved", "the learner waits for data") if starved else (state, said))),
        "Solved": (state == "Solved", end, said),
        "Finished": (over, end, said),
        "Failed": (failed, *((reason, text) if failed else ("NotFailed", said))),
        # kstatus treats this as a failure.
        "Stalled": (failed, *((reason, text) if failed else ("NotFailed", said))),
        "Suspended": (True, SUSPENDED, "spec.suspend is true") if observed.suspended else active,
    }
    made = [_condition(observed, kept.get(kind, {}), kind, *each) for kind, each in conditions.items()]
    if not (observed.awaited or observed.blind) or over or observed.suspended:
        return made
    # Only the learner can change its earlier reports to the operator.
    asked = ("Training",) if fault else ("Ready", "Training")
    return [kept.get(each["type"], each) if each["type"] in asked else each for each in made]


def _without_actors(observed: ObservedRun) -> str:
    """Why no actor is connected. An actor with a simulator joins with the simulator's first message."""
    text, metadata = "no actor has joined the learner", observed.resource["metadata"]
    simulator = part(observed.resource, "spec", "actors", "external")
    if not simulator:
        return text
    pods = f"-n {metadata['namespace']} -l {RUN_LABEL}={metadata['name']},{COMPONENT_LABEL}=actor"
    return f"{text}, because no simulator has connected: `kubectl logs {pods} -c {simulator.get('name', 'simulator')}`"


def _end_of_failed(observed: ObservedRun) -> str:
    """Why a run has failed, with the last known end of a container."""
    limit, count = part(observed.resource, "spec").get("backoffLimit"), observed.restarts[0]
    said = f"{count} restarts of learner and quantizer, spec.backoffLimit is {limit}"
    ended = [
        (str(end.get("finishedAt") or ""), f"{role_of(pod)} ended with exit code {end.get('exitCode')}")
        for pod in observed.pods
        for container in items(part(pod, "status"), "containerStatuses")
        if role_of(pod) in CORE and (end := part(container, "lastState", "terminated"))
    ]
    return f"{said}; the last {max(ended)[1]}" if ended else said


def _log_command(observed: ObservedRun, fault: Fault) -> str:
    """Where to find the reason of a container's end. The log may hold secrets, and more people can read the status."""
    if fault.container is None:
        return ""
    pod, namespace = fault.subject.removeprefix("pod "), observed.resource["metadata"]["namespace"]
    return f"`kubectl logs -n {namespace} {pod} -c {fault.container} --previous` shows why"


def _condition(observed: ObservedRun, earlier: Object, kind: str, holds: bool, reason: str, message: str) -> Object:
    same = earlier.get("status") == str(holds)
    return {
        "type": kind,
        "status": str(holds),
        "reason": reason,
        "message": message[:MESSAGE_CHARACTERS],
        "lastTransitionTime": earlier["lastTransitionTime"] if same else timestamp(observed.now),
        "observedGeneration": observed.resource["metadata"].get("generation", 0),
    }


def _is_starved(observed: ObservedRun) -> bool:
    live, earlier = observed.live, observed.earlier
    if live is None or earlier is None or live.elapsed_s <= earlier.elapsed_s:
        return False
    return live.starved_s - earlier.starved_s > _STARVED_SHARE * (live.elapsed_s - earlier.elapsed_s)
