"""The reason why a pod does not run becomes one line."""

import re
from datetime import datetime

import pytest

from actorq_apps.cluster.diagnosis import (
    PodView,
    is_outdated,
    is_rolled_out,
    pod_fault,
    view,
    waiting_for,
    workload_fault,
)
from actorq_apps.cluster.progress import serious
from tests.actorq_apps.cluster.cluster_objects import (
    Object,
    container,
    crash_loop,
    crashed_late,
    event,
    evicted_pod,
    owned,
    pod,
    ready_pod,
    replica_set,
    terminated,
    unschedulable,
    waiting,
    workload,
)

SINCE = "2026-01-02T03:04:05Z"
DEFAULT = "kubectl.kubernetes.io/default-container"
NOW = datetime.fromisoformat(SINCE).timestamp()


def line(found: Object, now: float = NOW + 60) -> str | None:
    fault = pod_fault(found, now)
    return fault.line("last words") if fault and fault.container else fault.line() if fault else None


def test_a_missing_image_is_named() -> None:
    found = pod("actor-1", "actor", container(waiting("ImagePullBackOff", 'Back-off pulling image "actorq-actor:9"')))
    assert re.search("pod actor-1 .*image actorq-actor:9 .*Back-off.*`images`", line(found) or "")


def test_reports_why_a_container_cannot_start() -> None:
    found = pod("learner-0", "learner", container(waiting("CreateContainerConfigError", 'secret "tls" not found')))
    assert re.search('pod learner-0 .*: secret "tls" not found$', line(found) or "")


@pytest.mark.parametrize("state", [container(terminated(2)), crash_loop(2, restarts=1)], ids=["ended", "waiting"])
def test_an_end_with_exit_code_2_is_a_fault_at_once(state: Object) -> None:
    told = line(pod("learner-0", "learner", state)) or ""
    assert re.search("pod learner-0 .*exit code 2\\b.*settings.*: last words$", told)


def test_a_crash_loop_comes_with_the_last_log_line() -> None:
    told = line(pod("quantizer-a", "quantizer", crash_loop(1, restarts=3))) or ""
    assert re.search("pod quantizer-a .*looping .*exit code 1, 3 restarts.*: last words$", told)


def test_crashes_between_long_lives_are_no_loop() -> None:
    found = pod("learner-0", "learner", crashed_late(137, restarts=2))
    told = line(found) or ""
    assert re.search("pod learner-0 .*exit code 137, 2 restarts.*: last words$", told)
    assert "looping" not in told
    assert [len(faults) for faults in serious([found], NOW)] == [0, 1]


def test_reports_that_a_container_ran_out_of_memory() -> None:
    found = pod("learner-0", "learner", crash_loop(137, restarts=2, reason="OOMKilled"))
    assert re.search("pod learner-0 .*looping .*OOMKilled, 2 restarts.*: last words$", line(found) or "")


@pytest.mark.parametrize(
    "found",
    [
        pod("a", "actor", container(waiting("ContainerCreating"))),
        pod("a", "actor", crash_loop(1, restarts=1)),
        pod("a", "actor", container(terminated(1))),
        pod("a", "actor", container({"running": {}}, restarts=7, ready=True, lastState=terminated(2))),
        pod("a", "actor"),
        ready_pod("a", "actor"),
        evicted_pod("a", "actor"),
    ],
    ids=["creating", "crashed once", "ended once", "running again", "new", "ready", "replaced"],
)
def test_a_state_that_may_recover_is_no_fault(found: Object) -> None:
    assert line(found) is None


def test_an_unschedulable_pod_is_no_fault_at_first() -> None:
    found = unschedulable("actor-1", "actor", SINCE)
    assert line(found, NOW + 19) is None
    assert re.search("pod actor-1 .*: 0/3 nodes are available: 3 Insufficient cpu$", line(found, NOW + 20) or "")


def test_a_pod_that_others_make_room_for_is_no_fault() -> None:
    found = unschedulable("learner-0", "learner", SINCE)
    found["status"]["nominatedNodeName"] = "node-2"
    assert line(found, NOW + 3_600) is None
    events = [event("learner-0", "FailedScheduling", "0/3 nodes are available", SINCE)]
    assert "node-2" in waiting_for(found, events)


def test_a_pod_that_is_being_removed_is_no_fault() -> None:
    found = unschedulable("actor-1", "actor", SINCE)
    found["metadata"]["deletionTimestamp"] = SINCE
    assert line(found) is None
    assert view(found).phase == "Terminating"


def test_one_actor_of_several_may_be_missing() -> None:
    missing, other = unschedulable("actor-1", "actor", SINCE), ready_pod("actor-2", "actor")
    assert [len(faults) for faults in serious([missing, other], NOW + 60)] == [0, 1]
    assert [len(faults) for faults in serious([missing], NOW + 60)] == [1, 0]
    broken = pod("actor-1", "actor", container(waiting("ErrImagePull", "not found")))
    assert [len(faults) for faults in serious([broken, other], NOW + 60)] == [1, 0]
    learner = unschedulable("learner-0", "learner", SINCE)
    assert [len(faults) for faults in serious([learner, other], NOW + 60)] == [1, 0]


def test_shows_a_pod_like_kubectl() -> None:
    assert view(ready_pod("learner-0", "learner", 2)) == PodView("learner-0", "learner", "Running", True, 2)
    looping = pod("actor-1", "actor", crash_loop(1, restarts=4))
    assert view(looping) == PodView("actor-1", "actor", "CrashLoopBackOff", False, 4)
    assert view(pod("actor-2", "actor")) == PodView("actor-2", "actor", "Pending", False, 0)


@pytest.mark.parametrize(("annotations", "container"), [({}, "simulator"), ({DEFAULT: "actor"}, "actor")])
def test_a_pod_with_several_containers_shows_the_log_that_kubectl_shows(
    annotations: dict[str, str], container: str
) -> None:
    found = ready_pod("actor-1", "actor")
    found["spec"] = {"containers": [{"name": "simulator"}, {"name": "actor"}]}
    found["metadata"]["annotations"] = annotations
    assert view(found).container == container


def test_pods_that_a_workload_may_not_make_are_explained() -> None:
    quota = 'pods "actor-x" is forbidden: exceeded quota: cpu'
    refused = workload("Deployment", "actor")
    refused["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": quota}]}
    fault = workload_fault(refused, [])
    assert fault
    assert re.search(f"Deployment actor .*: {quota}$", fault.line())


def test_explains_a_statefulset_without_pods_by_its_events() -> None:
    refused = workload("StatefulSet", "learner")
    refused["metadata"]["uid"] = "uid-learner"
    events = [
        event("learner", "FailedCreate", "an older reason", "2026-01-02T03:04:05Z"),
        event("learner", "FailedCreate", "violates PodSecurity", "2026-01-02T03:04:06Z"),
        event("other", "FailedCreate", "of another", "2026-01-02T03:04:07Z"),
    ]
    fault = workload_fault(refused, events)
    assert fault
    assert re.search("StatefulSet learner .*: violates PodSecurity$", fault.line())
    refused["status"] = {"replicas": 1}
    assert workload_fault(refused, events) is None


def test_a_waiting_pod_is_explained_by_its_newest_warning() -> None:
    found = pod("learner-0", "learner", container(waiting("ContainerCreating")))
    mount = 'MountVolume.SetUp failed for volume "certificates" : secret "learner-tls" not found'
    events = [event("learner-0", "Scheduled", "ok", SINCE, "Normal"), event("learner-0", "FailedMount", mount, SINCE)]
    assert waiting_for(found, events) == mount
    assert waiting_for(found, []) == "ContainerCreating"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, False),
        ({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1}, False),
        ({"observedGeneration": 2}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "unavailableReplicas": 2}, True),
        ({"observedGeneration": 2, "updateRevision": "b", "currentRevision": "a"}, False),
        ({"observedGeneration": 2, "updateRevision": "b", "currentRevision": "b"}, True),
    ],
    ids=["unseen", "not looked at", "under way", "none yet", "done", "learner under way", "learner done"],
)
def test_a_workload_is_rolled_out_when_no_earlier_pods_are_left(status: Object, expected: bool) -> None:
    found = workload("StatefulSet" if "updateRevision" in status else "Deployment", "actor")
    found["metadata"]["generation"] = 2
    found["spec"]["replicas"] = 2
    found["status"] = status
    assert is_rolled_out(found) is expected


def test_a_pod_of_a_statefulset_is_outdated_by_its_revision() -> None:
    found = owned(pod("learner-0", "learner"), "StatefulSet", "learner")
    found["metadata"]["labels"]["controller-revision-hash"] = "a"
    learner = workload("StatefulSet", "learner")
    learner["metadata"]["generation"] = 2
    learner["status"] = {"observedGeneration": 2, "updateRevision": "a"}
    assert not is_outdated(found, [learner], [])
    learner["status"]["updateRevision"] = "b"
    assert is_outdated(found, [learner], [])
    learner["status"] = {"observedGeneration": 1, "updateRevision": "a"}
    assert is_outdated(found, [learner], []), "what it says now has not been looked at"


def test_a_pod_of_a_deployment_is_outdated_by_its_replica_set() -> None:
    found = owned(pod("actor-a-1", "actor"), "ReplicaSet", "actor-a")
    actor = workload("Deployment", "actor")
    actor["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "2"}
    assert not is_outdated(found, [actor], [replica_set("actor-a", "actor", "2"), replica_set("actor-b", "actor", "1")])
    assert is_outdated(found, [actor], [replica_set("actor-a", "actor", "1"), replica_set("actor-b", "actor", "2")])
    assert is_outdated(found, [actor], []), "its replica set has been deleted"
    assert not is_outdated(pod("by-hand", "actor"), [actor], [])


def test_a_workload_without_pods_is_rolled_out_without_any() -> None:
    found = workload("Deployment", "actor")
    found["spec"]["replicas"] = 0
    found["status"] = {"observedGeneration": 1}
    assert is_rolled_out(found)
