"""Installs the operator of k8s/operator, and removes it."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client

from actorq.errors import NotFoundError
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.context import connect
from actorq_apps.cluster.diagnosis import view
from actorq_apps.cluster.objects import Object, items, part
from actorq_apps.operator.leader import LEASE
from tests.cluster.older_kubernetes import K8S, Offered, adapted, manifests

SYSTEM = "actorq-system"
API_VERSION, KIND = "actorq.dev/v1alpha1", "TrainingRun"
_OPERATOR = "app.kubernetes.io/name=actorq-operator"
_FOLDER = "/manifests"
_MAP = "manifests"


class Runs:
    """TrainingRuns in a namespace."""

    def __init__(self, namespace: str) -> None:
        self.cluster = connect(namespace)

    def apply(self, manifest: Object) -> str:
        self.cluster.apply(manifest)
        return str(manifest["metadata"]["name"])

    def status(self, name: str) -> Object:
        return part(self.cluster.get(API_VERSION, KIND, name), "status")

    def condition(self, name: str, kind: str) -> Object:
        return next((each for each in items(self.status(name), "conditions") if each["type"] == kind), {})

    def await_condition(self, name: str, kind: str) -> Object:
        """Return the condition once it is true."""
        while (found := self.condition(name, kind)).get("status") != "True":
            self.wait()
        return found

    def await_actors(self, name: str, count: int) -> None:
        """Return when the status has this number of actors."""
        while self.status(name).get("actors") != count:
            self.wait()

    def scale(self, name: str, replicas: int) -> None:
        """Scale like `kubectl scale`."""
        self.cluster.patch(API_VERSION, KIND, name, {"spec": {"replicas": replicas}}, "scale")

    def autoscale(self, name: str, replicas: int) -> int:
        """Scale like a HorizontalPodAutoscaler: read the scale, count its pods, write the scale with another number."""
        api = client.CustomObjectsApi(self.cluster.core().api_client)
        group, version = API_VERSION.split("/")
        place = (group, version, self.cluster.namespace, "trainingruns", name)
        scale: Any = api.get_namespaced_custom_object_scale(*place)
        pods = self.cluster.list("v1", "Pod", scale["status"]["selector"])
        scale["spec"]["replicas"] = replicas
        api.replace_namespaced_custom_object_scale(*place, body=scale)
        return len(pods)

    def delete(self, name: str) -> None:
        self.cluster.delete(API_VERSION, KIND, name)

    def wait(self) -> None:
        """Return after a change of a pod, or after a second."""
        self.cluster.await_pod_change("", 1)

    def reasons(self, name: str) -> list[str]:
        """The reasons of the events of a run, sorted."""
        events = [(each["reason"], each["involvedObject"]) for each in self.cluster.list("v1", "Event")]
        return sorted(reason for reason, told in events if (told.get("kind"), told.get("name")) == (KIND, name))

    def exit_codes(self, name: str, component: str) -> set[int]:
        """The exit codes of ended containers in the existing pods of a run."""
        pods = self.cluster.list("v1", "Pod", f"actorq/run={name},app.kubernetes.io/component={component}")
        containers = [each for pod in pods for each in items(part(pod, "status"), "containerStatuses")]
        ended = [part(each, "state", "terminated") for each in containers]
        return {int(each["exitCode"]) for each in ended if each}

    def restarts(self, name: str) -> dict[str, int]:
        """The number of restarts of the containers of a run's pods."""
        pods = self.cluster.list("v1", "Pod", f"actorq/run={name}")
        return {pod["metadata"]["name"]: view(pod).restarts for pod in pods}

    def unhealthy(self, name: str) -> int:
        """The number of failed probes in the events of a run's pods."""
        told = [(each["reason"], str(each["involvedObject"].get("name"))) for each in self.cluster.list("v1", "Event")]
        return sum(reason == "Unhealthy" and pod.startswith(f"{name}-") for reason, pod in told)

    def left(self, name: str) -> dict[str, set[str]]:
        """The remaining objects of a run, by kind."""
        found = {
            kind: {each["metadata"]["name"] for each in self.cluster.list(api_version, kind, f"actorq/run={name}")}
            for api_version, kinds in _KINDS.items()
            for kind in kinds
        }
        return {kind: names for kind, names in found.items() if names}


_KINDS = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "ReplicaSet", "StatefulSet"),
}


class Operator:
    """The operator's pods."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def leader(self) -> str:
        """The pod that holds the Lease; empty if none does."""
        lease = self.cluster.get("coordination.k8s.io/v1", "Lease", LEASE)
        holder = str(part(lease, "spec").get("holderIdentity") or "")
        return holder.rpartition("-")[0]

    def kill(self) -> None:
        """Delete the pod of the leader without a grace period."""
        options = client.V1DeleteOptions(grace_period_seconds=0)
        self.cluster.core().delete_namespaced_pod(self.leader(), SYSTEM, body=options)

    def await_leader(self, other_than: str = "") -> None:
        while self.leader() in ("", other_than):
            self.cluster.await_pod_change(_OPERATOR, 1)

    def scale(self, replicas: int) -> None:
        self.cluster.scale("apps/v1", "Deployment", "actorq-operator", replicas)
        while len(self.cluster.list("v1", "Pod", _OPERATOR)) != replicas:
            self.cluster.await_pod_change(_OPERATOR, 1)


def allow(cluster: Cluster) -> None:
    """Allow the operator to make runs in a namespace."""
    for each in _rendered("operator-access"):
        cluster.apply(each)


@contextmanager
def installed(offered: Offered, folder: Path) -> Iterator[Operator]:
    """Installs the operator of the image actorq-operator for a while. folder: an empty folder for manifests."""
    objects = _for_cluster(_rendered("operator"), offered, manifests(offered, folder))
    cluster = connect(SYSTEM)
    for each in sorted(objects, key=lambda each: each["kind"] not in ("Namespace", "CustomResourceDefinition")):
        cluster.apply(each)
    operator = Operator(cluster)
    try:
        operator.await_leader()
        yield operator
    finally:
        for each in reversed(objects):
            if each["kind"] in ("Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"):
                with suppress(NotFoundError):
                    cluster.delete(each["apiVersion"], each["kind"], each["metadata"]["name"])


def _rendered(name: str) -> list[Object]:
    """The objects of a folder of k8s."""
    command = ["kubectl", "kustomize", str(K8S / name)]
    rendered = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return list(yaml.safe_load_all(rendered.stdout))


def _for_cluster(objects: list[Object], offered: Offered, runs: Path) -> list[Object]:
    """The operator's objects. For an older cluster, the manifests of `runs` come in a ConfigMap."""
    if offered == Offered():
        return objects
    paths = [path for part in ("base", "components") for path in sorted((runs / part).rglob("*.yaml"))]
    texts = {str(path.relative_to(runs)): path.read_text(encoding="utf-8") for path in paths}
    keys = {path: path.replace("/", "_") for path in texts}
    namespace = {"namespace": SYSTEM}
    data = {keys[path]: text for path, text in texts.items()}
    made: list[Object] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _MAP, **namespace}, "data": data}
    ]
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    pod: Any = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["args"].append(f"--manifests={_FOLDER}")
    container["volumeMounts"].append({"name": _MAP, "mountPath": _FOLDER})
    files = [{"key": key, "path": path} for path, key in keys.items()]
    pod["volumes"].append({"name": _MAP, "configMap": {"name": _MAP, "items": files}})
    for port in container["ports"]:
        port["protocol"] = "TCP"
    others = [each for each in objects if each is not deployment]
    return [*_without_rules(adapted(others, offered)), *made, deployment]


def _without_rules(tree: Any) -> Any:
    """The object without the rules in schemas, which an older API server refuses in server-side apply."""
    if isinstance(tree, list):
        return [_without_rules(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    return {key: _without_rules(value) for key, value in tree.items() if key != "x-kubernetes-validations"}


def example(name: str, **spec: Any) -> Object:
    """The TrainingRun of examples/trainingrun, under another name and with other settings."""
    path = Path(__file__).parents[2] / "examples" / "trainingrun" / "cartpole.yaml"
    manifest: Object = yaml.safe_load(path.read_text(encoding="utf-8"))
    manifest["metadata"]["name"] = name
    manifest["spec"] |= json.loads(json.dumps(spec))
    return manifest
