"""The operator's observations of a run become one reason."""

from typing import Any

import pytest

from actorq.domain.status import ActorStatus, RunState
from actorq_apps.cluster.diagnosis import Fault
from actorq_apps.operator.status.conditions import new_status
from actorq_apps.operator.status.events import new_events
from actorq_apps.operator.status.observed_run import ObservedRun, find_fault, timestamp
from tests.actorq_apps.cluster.cluster_objects import (
    Object,
    container,
    crash_loop,
    crashed_late,
    event,
    pod,
    unschedulable,
    waiting,
)
from tests.builders.run_status import run_status

NOW = 1_800_000_000.0
ACTING = (ActorStatus("actor-1", "actor", 0, True, None),)


def observed_run(status: Object | None = None, spec: Object | None = None, **seen: Any) -> ObservedRun:
    metadata = {"name": "tiny", "namespace": "lab", "uid": "u", "generation": 1}
    return ObservedRun({"metadata": metadata, "spec": spec or {}, "status": status or {}}, NOW, **seen)


def conditions(seen: ObservedRun) -> dict[str, Object]:
    return {each["type"]: each for each in new_status(seen, find_fault(seen))["conditions"]}


def pending_volume() -> Object:
    metadata = {
        "name": "data-tiny-learner-0",
        "uid": "uid-data-tiny-learner-0",
        "creationTimestamp": timestamp(NOW - 60),
    }
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "status": {"phase": "Pending"}}


def stuck_workload() -> Object:
    return {
        "kind": "StatefulSet",
        "metadata": {"name": "tiny-learner", "uid": "uid-tiny-learner"},
        "spec": {"replicas": 1},
    }


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"pods": [pod("a", "actor", container(waiting("ErrImagePull", "no such image")))]}, "ImagePull"),
        ({"pods": [pod("a", "learner", crash_loop(1, restarts=3))]}, "CrashLoop"),
        ({"pods": [pod("a", "learner", crashed_late(1, restarts=2))]}, "Crashed"),
        ({"pods": [pod("a", "learner", crash_loop(2, restarts=1))]}, "InvalidConfiguration"),
        ({"pods": [unschedulable("a", "learner", timestamp(NOW - 60))]}, "Unschedulable"),
        (
            {"pods": [unschedulable("a", "learner", timestamp(NOW - 60))], "volumes": [pending_volume()]},
            "VolumePending",
        ),
        (
            {
                "pods": [unschedulable("a", "learner", timestamp(NOW - 60))],
                "volumes": [pending_volume()],
                "events": [
                    event("data-tiny-learner-0", "ProvisioningFailed", "no quota", timestamp(NOW - 50)),
                    event("data-tiny-learner-0", "WaitForPodScheduled", "waiting for a", timestamp(NOW - 10), "Normal"),
                ],
            },
            "Unschedulable",
        ),
        (
            {
                "pods": [unschedulable("a", "learner", timestamp(NOW - 60))],
                "volumes": [pending_volume()],
                "events": [
                    event("data-tiny-learner-0", "WaitForFirstConsumer", "no pod", timestamp(NOW - 50), "Normal"),
                    event("data-tiny-learner-0", "ProvisioningFailed", "no quota", timestamp(NOW - 10)),
                ],
            },
            "VolumePending",
        ),
        ({"live": run_status(elapsed_s=100.0)}, "NoActors"),
        ({"live": run_status(elapsed_s=1.0)}, "Starting"),
        ({"live": run_status(state=RunState.INTERRUPTED, actors=ACTING)}, "Interrupted"),
        ({"live": run_status(actors=ACTING)}, "Running"),
    ],
)
def test_the_reason_of_ready_names_the_fault(seen: Object, reason: str) -> None:
    ready = conditions(observed_run(**seen))["Ready"]
    assert ready["reason"] == reason
    assert ready["message"]
    assert ready["status"] == str(reason == "Running")


def test_a_replaced_learner_leaves_an_interrupted_run_with_the_reason() -> None:
    trained = new_status(observed_run(live=run_status(environment_steps=700, actors=ACTING)), None)
    seen = observed_run(trained, pods=[pod("a", "learner", crash_loop(2, restarts=3))])
    after = new_status(seen, find_fault(seen))
    assert after["state"] == "Interrupted"
    # The content of a log may be secret.
    assert "`kubectl logs -n lab a -c service --previous`" in after["reason"]
    (failed,) = [each for each in after["conditions"] if each["type"] == "Failed"]
    assert failed["status"] == "False"


def test_a_quota_that_keeps_pods_away_is_named() -> None:
    said = event("tiny-learner", "FailedCreate", "pods is forbidden: exceeded quota: small", "2026-01-02T03:04:05Z")
    ready = conditions(observed_run(workloads=[stuck_workload()], events=[said]))["Ready"]
    assert ready["reason"] == "Quota"
    assert "exceeded quota: small" in ready["message"]


def test_a_run_without_simulators_names_the_command_that_shows_their_log() -> None:
    live = run_status(state=RunState.WAITING_FOR_ACTORS, elapsed_s=60.0, actors=())
    own = conditions(observed_run(live=live))["Ready"]
    assert (own["reason"], own["message"]) == ("NoActors", "no actor has joined the learner")
    spec = {"actors": {"external": {"image": "robot:1", "name": "robot"}}}
    ready = conditions(observed_run(spec=spec, live=live))["Ready"]
    assert ready["reason"] == "NoActors"
    command = "`kubectl logs -n lab -l actorq/run=tiny,app.kubernetes.io/component=actor -c robot`"
    assert ready["message"].endswith(f"because no simulator has connected: {command}")


def test_an_offline_run_needs_its_evaluator_and_no_actor() -> None:
    spec = {"config": {"dataset": "/data/set", "offline": True}}
    waiting = run_status(state=RunState.WAITING_FOR_ACTORS, elapsed_s=60.0, actors=())
    ready = conditions(observed_run(spec=spec, live=waiting))["Ready"]
    assert (ready["reason"], ready["message"]) == ("NoActors", "the evaluator has not joined the learner")
    evaluator = ActorStatus("evaluator", "evaluator", 0, True, None)
    ready = conditions(observed_run(spec=spec, live=run_status(elapsed_s=60.0, actors=(evaluator,))))["Ready"]
    assert (ready["status"], ready["message"]) == ("True", "the learner answers and trains from stored data")


def test_a_learner_that_mostly_waits_is_starved_but_training() -> None:
    earlier = run_status(elapsed_s=10.0, starved_s=1.0, actors=ACTING)
    starved = run_status(elapsed_s=20.0, starved_s=10.5, actors=ACTING)
    training = conditions(observed_run(live=starved, earlier=earlier))["Training"]
    assert (training["status"], training["reason"]) == ("True", "LearnerStarved")
    busy = run_status(elapsed_s=20.0, starved_s=9.0, actors=ACTING)
    assert conditions(observed_run(live=busy, earlier=earlier))["Training"]["reason"] == "Training"


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = new_status(observed_run(live=run_status(actors=ACTING)), None)
    later = ObservedRun({**observed_run().resource, "status": first}, NOW + 60, live=run_status(actors=ACTING))
    times = {each["type"]: each["lastTransitionTime"] for each in new_status(later, None)["conditions"]}
    assert set(times.values()) == {timestamp(NOW)}
    over = ObservedRun({**observed_run().resource, "status": first}, NOW + 90, live=run_status(state=RunState.SOLVED))
    solved = conditions(over)["Solved"]
    assert (solved["status"], solved["lastTransitionTime"]) == ("True", timestamp(NOW + 90))


def test_a_run_without_its_learner_is_interrupted_and_keeps_its_figures() -> None:
    before = new_status(observed_run(live=run_status(environment_steps=700, policy_version=3, actors=ACTING)), None)
    after = new_status(observed_run(before), None)
    assert (after["state"], after["environmentSteps"], after["stepsPerSecond"]) == ("Interrupted", 700, 0)
    assert after["elapsedSeconds"] == before["elapsedSeconds"] == 1.0


def test_the_events_of_one_change_have_the_same_names_each_time() -> None:
    before = new_status(observed_run(live=run_status(actors=ACTING)), None)
    seen = observed_run(before, live=run_status(policy_version=1, state=RunState.INTERRUPTED, actors=ACTING))
    after = new_status(seen, None)
    told, again = (
        [(each["reason"], each["metadata"]["name"]) for each in new_events(seen, after, None)] for _ in range(2)
    )
    assert told == again
    assert [reason for reason, _ in told] == ["FirstPolicy", "Interrupted"]
    assert len({name for _, name in told}) == 2


@pytest.mark.parametrize("exported", ["s3://policies/alpha/policy.onnx", ""])
def test_the_end_of_a_run_reports_where_its_best_policy_is(exported: str) -> None:
    before = new_status(observed_run(live=run_status(policy_version=1, actors=ACTING)), None)
    spec = {"policyExport": {"url": "s3://policies/alpha"}}
    seen = observed_run(
        before, spec, live=run_status(policy_version=1, state=RunState.SOLVED, exported_policy=exported)
    )
    after = new_status(seen, None)
    assert after.get("policy", "") == exported
    told = {each["reason"]: each["message"] for each in new_events(seen, after, None)}
    assert list(told) == ["Solved", "PolicyExported" if exported else "PolicyNotExported"]
    assert exported in told[list(told)[1]]
    # Later reconciliations without the learner keep the address.
    assert new_status(observed_run(after, spec), None).get("policy", "") == exported


def kstatus(status: Object) -> str:
    """The status that kstatus, and with it Flux and Helm, reads from this object."""
    found = {each["type"]: each["status"] for each in status["conditions"]}
    if found.get("Stalled") == "True":
        return "Failed"
    return "Current" if found.get("Ready", "True") == "True" else "InProgress"


def test_kstatus_tools_never_wait_forever_for_a_run() -> None:
    begun = observed_run(live=run_status(elapsed_s=1.0))
    assert kstatus(new_status(begun, None)) == "InProgress"
    assert kstatus(new_status(observed_run(live=run_status(actors=ACTING)), None)) == "Current"
    for state in (RunState.SOLVED, RunState.BUDGET_ENDED, RunState.STOPPED):
        assert kstatus(new_status(observed_run(live=run_status(state=state)), None)) == "Current"
    hopeless = Fault("spec", "is wrong", reason="InvalidConfiguration")
    assert kstatus(new_status(observed_run(), hopeless)) == "Failed"
    # A change of a finished run that has no effect.
    over = observed_run(live=run_status(state=RunState.SOLVED))
    assert kstatus(new_status(over, Fault("spec", "changed", reason="Immutable"))) == "InProgress"


def test_takes_the_start_of_a_run_from_its_learner() -> None:
    seen = observed_run(live=run_status(elapsed_s=100.0))
    assert new_status(seen, None)["startedAt"] == timestamp(seen.now - 100.0)


@pytest.mark.parametrize("suspended", [False, True])
def test_a_suspended_run_does_not_train_while_its_learner_still_answers(suspended: bool) -> None:
    live = run_status(state=RunState.TRAINING, actors=ACTING)
    found = conditions(observed_run({"startedAt": timestamp(NOW - 60)}, {"suspend": suspended}, live=live))

    assert found["Training"]["status"] == str(not suspended)
    assert found["Suspended"]["status"] == str(suspended)
