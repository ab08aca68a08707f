"""API objects as a cluster returns them, reduced to the fields that are read."""

from typing import Any

from actorq.domain.processes import ProcessStats
from actorq.domain.status import ActorReport, ActorStatus
from tests.builders.run_status import run_status

Object = dict[str, Any]

STATS = ProcessStats("actor-1", "actor", "node", 1, 0.0, 0.0, 0, 0)
STATUS = run_status(
    environment_steps=5_916,
    environment_steps_per_s=1_149.0,
    updates=500,
    updates_per_s=100.0,
    samples_per_insert=16.0,
    episodes=10,
    training_return=21.1,
    policy_version=36,
    staleness_p50=1.0,
    staleness_p99=3.0,
    actors=(
        ActorStatus("actor-1", "actor", 0, True, ActorReport(34, "int8", 100, 742.3, 0, (), STATS)),
        ActorStatus("actor-2", "actor", 1, True, None),
    ),
)


def pod(name: str, role: str, *containers: Object, **status: Any) -> Object:
    labels = {"app.kubernetes.io/name": "actorq", "app.kubernetes.io/component": role}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "lab", "uid": f"uid-{name}", "labels": labels},
        "status": {"phase": "Pending", **({"containerStatuses": list(containers)} if containers else {}), **status},
    }


def container(state: Object, restarts: int = 0, ready: bool = False, **more: Any) -> Object:
    return {
        "name": "service",
        "image": "actorq-actor:9",
        "ready": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": {},
        **more,
    }


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, reason: str = "Error") -> Object:
    return {"terminated": {"exitCode": code, "reason": reason}}


def ready_pod(name: str, role: str, restarts: int = 0) -> Object:
    return pod(name, role, container({"running": {}}, restarts, ready=True), phase="Running")


def evicted_pod(name: str, role: str) -> Object:
    """The remaining object of a replaced pod."""
    return pod(name, role, container(terminated(137), restarts=2), phase="Failed", reason="Evicted")


def crash_loop(code: int, restarts: int, reason: str = "Error") -> Object:
    state = waiting("CrashLoopBackOff", "back-off 10s restarting failed container")
    return container(state, restarts, lastState=terminated(code, reason))


def crashed_late(code: int, restarts: int) -> Object:
    """A container that the kubelet restarts after it ran for ten minutes."""
    found = crash_loop(code, restarts)
    found["lastState"]["terminated"] |= {"startedAt": "2026-01-02T03:04:05Z", "finishedAt": "2026-01-02T03:14:05Z"}
    return found


def unschedulable(name: str, role: str, since: str) -> Object:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient cpu.",
        "lastTransitionTime": since,
    }
    return pod(name, role, conditions=[condition])


def event(name: str, reason: str, message: str, at: str, kind: str = "Warning") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{at}"},
        "involvedObject": {"uid": f"uid-{name}"},
        "reason": reason,
        "message": message,
        "type": kind,
        "lastTimestamp": at,
    }


def workload(kind: str, component: str, image: str = "") -> Object:
    labels = {"app.kubernetes.io/name": "actorq", "app.kubernetes.io/component": component}
    spec: Object = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": component, "image": image or f"actorq-{component}:1"}]},
        },
    }
    if kind == "StatefulSet":
        spec["volumeClaimTemplates"] = [{"metadata": {"name": "data"}}]
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": component, "labels": labels}, "spec": spec}


def owned(child: Object, kind: str, name: str) -> Object:
    """The same object, created by a controller for another object."""
    child["metadata"]["ownerReferences"] = [{"kind": kind, "name": name}]
    return child


def replica_set(name: str, deployment: str, revision: str) -> Object:
    labels = {"app.kubernetes.io/name": "actorq", "app.kubernetes.io/component": deployment}
    metadata = {"name": name, "labels": labels, "annotations": {"deployment.kubernetes.io/revision": revision}}
    return owned({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}, "Deployment", deployment)


def overlay() -> list[Object]:
    """The rendered objects of the smallest run."""
    return [
        workload("Deployment", "actor"),
        workload("Deployment", "quantizer"),
        workload("StatefulSet", "learner"),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "learner"}, "spec": {"ports": [{"port": 50051}]}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "run-config"}, "data": {}},
    ]
