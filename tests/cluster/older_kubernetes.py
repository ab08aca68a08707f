"""Adapts overlays to the cluster of the tests. Features that an older Kubernetes lacks are replaced."""

import shutil
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes import client

from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.manifests import render
from actorq_apps.cluster.objects import WORKLOADS, Object

HERE = Path(__file__).parent
K8S = HERE.parents[1] / "k8s"
BUDGETS = ("policy/v1", "policy/v1beta1")
# The first minor versions of Kubernetes 1 that have these features by default.
_GRPC_PROBES, _EVICTION_POLICIES = 24, 26
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@dataclass(frozen=True)
class Offered:
    """Features of a cluster that depend on its version. budgets: version of PodDisruptionBudget. eviction_policies:
    whether it knows unhealthyPodEvictionPolicy. grpc_probes: whether the kubelet has gRPC probes.
    """

    budgets: str = BUDGETS[0]
    eviction_policies: bool = True
    grpc_probes: bool = True

    @classmethod
    def by(cls, cluster: Cluster) -> "Offered":
        """The features by the version that a server reports."""
        budgets = next(version for version in BUDGETS if cluster.has_kind(version, "PodDisruptionBudget"))
        minor = int(client.VersionApi(cluster.core().api_client).get_code().minor.rstrip("+"))
        return cls(budgets, minor >= _EVICTION_POLICIES, minor >= _GRPC_PROBES)


def adapted(objects: list[Object], offered: Offered) -> list[Object]:
    """The objects with the changes that such a cluster needs."""
    adapted = deepcopy(objects)
    for each in adapted:
        if each["kind"] == "PodDisruptionBudget":
            each["apiVersion"] = offered.budgets
            if not offered.eviction_policies:
                each["spec"].pop("unhealthyPodEvictionPolicy", None)
        if each["kind"] in WORKLOADS and not offered.grpc_probes:
            for container in each["spec"]["template"]["spec"]["containers"]:
                for probe in _PROBES:
                    if container.get(probe, {}).pop("grpc", None):
                        container[probe]["tcpSocket"] = {"port": "grpc"}
    return adapted


def manifests(offered: Offered, folder: Path) -> Path:
    """The folder for the operator's --manifests: k8s/ itself, or a changed copy in `folder` for an older cluster."""
    if offered == Offered():
        return K8S
    copy = shutil.copytree(K8S, folder / "k8s")
    for path in copy.rglob("*.yaml"):
        documents = list(yaml.safe_load_all(path.read_text()))
        if path.name == "probes.yaml" and not offered.grpc_probes:
            path.write_text(path.read_text().replace("/grpc", "/tcpSocket"))
        elif all(isinstance(each, dict) and "kind" in each for each in documents):
            path.write_text(yaml.safe_dump_all(adapted(documents, offered)))
    return copy


class Overlays:
    """The overlays of this folder in a form that the cluster accepts: the folder itself, or a rendered file of that
    name.
    """

    def __init__(self, offered: Offered, folder: Path) -> None:
        self.offered = offered
        self._folder = folder

    def path(self, name: str) -> str:
        """The argument of `actorq cluster up` for one overlay."""
        if self.offered == Offered():
            return str(HERE / name)
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all(adapted(render(str(HERE / name)), self.offered)))
        return str(path)
