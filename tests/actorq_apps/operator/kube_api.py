"""A Kubernetes API server for tests of the operator: objects by kind and name, and what a kubelet does."""

from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from tests.actorq_apps.cluster.api_kinds import KINDS, list_path
from tests.actorq_apps.cluster.cluster_api import ClusterApi, serving

Object = dict[str, Any]
NAMESPACE = "lab"
RUNS = "actorq.dev/v1alpha1"
_PATHS = {kind: list_path(version, plural) for version, kinds in KINDS.items() for kind, plural, _ in kinds}


class KubeApi(ClusterApi):
    """Objects of one namespace. `kubelet` creates the pods of workloads."""

    def immutable(self, before: Object, after: Object) -> str:
        if before["kind"] == "PersistentVolumeClaim" and _size(after) < _size(before):
            return "spec.resources.requests.storage: Forbidden: field can not be less than previous value"
        templates = [each.get("spec", {}).get("volumeClaimTemplates") for each in (before, after)]
        if templates[0] != templates[1]:
            return "spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden"
        return ""

    @property
    def there(self) -> list[tuple[str, str]]:
        """Kind and name of all objects."""
        return [(each["kind"], each["metadata"]["name"]) for each in self.objects.values()]

    def get(self, kind: str, name: str) -> Object:
        return self.objects[f"{_PATHS[kind]}/{name}"]

    def names(self, kind: str) -> set[str]:
        return {name for each, name in self.there if each == kind}

    def status(self, run: str) -> Object:
        found: Object = self.get("TrainingRun", run).get("status", {})
        return found

    def condition(self, run: str, kind: str) -> Object:
        return next(each for each in self.status(run)["conditions"] if each["type"] == kind)

    def reasons(self) -> list[str]:
        """The reasons of all events, in their order."""
        return [each["reason"] for each in self.objects.values() if each["kind"] == "Event"]

    def count(self, verb: str, kind: str) -> int:
        return sum((each, what) == (verb, kind) for each, what, _ in self.writes)

    def put(self, manifest: Object) -> Object:
        """Create or replace an object, as another client would."""
        return self.keep(f"{_PATHS[manifest['kind']]}/{manifest['metadata']['name']}", manifest)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and its dependents."""
        self.remove(f"{_PATHS[kind]}/{name}")

    def collect(self) -> None:
        """Delete each object whose owners are all gone, even if they were gone before its creation."""
        uids = {each["metadata"]["uid"] for each in self.objects.values()}
        for path, each in list(self.objects.items()):
            owners = [owner["uid"] for owner in each["metadata"].get("ownerReferences", [])]
            if path in self.objects and owners and not uids & set(owners):
                self.remove(path)

    def scale(self, run: str, replicas: int) -> None:
        """`kubectl scale trainingrun`."""
        scaled = deepcopy(self.get("TrainingRun", run))
        scaled["spec"].setdefault("actors", {})["replicas"] = replicas
        self.put(scaled)

    def kubelet(self) -> None:
        """Create the pods that workloads need, all ready, and delete the others."""
        for kind, name in [each for each in self.there if each[0] in ("StatefulSet", "Deployment")]:
            workload = self.get(kind, name)
            template, uid = workload["spec"]["template"], workload["metadata"]["uid"]
            wanted = {f"{name}-{index}" for index in range(workload["spec"]["replicas"])}
            there = {
                pod for pod in self.names("Pod") if self.get("Pod", pod)["metadata"]["ownerReferences"][0]["uid"] == uid
            }
            for pod in there - wanted:
                self.delete("Pod", pod)
            for pod in wanted - there:
                self.put(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {
                            "name": pod,
                            "labels": template["metadata"]["labels"],
                            "ownerReferences": [{"kind": kind, "name": name, "uid": uid}],
                        },
                        "spec": {**template["spec"], "nodeName": "node"},
                        "status": {
                            "phase": "Running",
                            "conditions": [{"type": "Ready", "status": "True"}],
                            "containerStatuses": [{"name": "c", "ready": True, "state": {"running": {}}}],
                        },
                    }
                )
            workload["status"] = {"replicas": len(wanted), "observedGeneration": workload["metadata"]["generation"]}


def _size(claim: Object) -> Any:
    return parse_quantity(claim["spec"]["resources"]["requests"]["storage"])


def kube_api() -> AbstractContextManager[KubeApi]:
    """A server during the block."""
    return serving(KubeApi())
