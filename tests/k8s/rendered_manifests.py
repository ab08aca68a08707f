"""Renders overlays and components of k8s/ with `kubectl kustomize`, and finds parts of the objects."""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("development", "production")
OPTIONAL = (
    "gpu-learner",
    "pull-secret",
    "spot-actors",
    "keda",
    "keda-mtls",
    "object-storage",
    "object-storage/network-policies",
)
WORKLOADS = ("learner", "quantizer", "actor", "evaluator")

Object = dict[str, Any]


@cache
def render(folder: Path) -> tuple[Object, ...]:
    """The objects of a kustomization. Skips the test without kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("manifests are rendered with `kubectl kustomize`, and there is no kubectl")
    completed = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return tuple(yaml.load_all(completed.stdout, yaml.CSafeLoader))


def with_components(folder: Path, *components: str) -> tuple[Object, ...]:
    """The base with some components, through a kustomization in `folder`."""
    target = folder / "run"
    target.mkdir()
    text = {"resources": ["../k8s/base"], "components": [f"../k8s/components/{name}" for name in components]}
    shutil.copytree(K8S, folder / "k8s")
    (target / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return render(target)


def of_kind(objects: tuple[Object, ...], *kinds: str) -> dict[str, Object]:
    """The objects of some kinds, by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] in kinds}


def pods(objects: tuple[Object, ...]) -> dict[str, Object]:
    """The pod specs of the workloads, by the workload's name."""
    workloads = of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")
    return {name: workload["spec"]["template"]["spec"] for name, workload in workloads.items()}


def containers(objects: tuple[Object, ...]) -> Iterator[tuple[Object, Object]]:
    """All containers, each with its pod's spec."""
    for pod in pods(objects).values():
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            yield pod, container


def environment(container: Object) -> dict[str, str]:
    """The environment variables with plain values."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def is_let_through(objects: tuple[Object, ...], source: str, target: str, port: int) -> bool:
    """Whether the network policies allow one workload's pods to connect to a port of another's."""
    labels = {name: pod_labels(objects, name) for name in (source, target)}
    policies = of_kind(objects, "NetworkPolicy").values()
    out = [each["spec"] for each in policies if _applies(each, "Egress", labels[source])]
    into = [each["spec"] for each in policies if _applies(each, "Ingress", labels[target])]
    return _allowed(out, "egress", "to", labels[target], port) and _allowed(
        into, "ingress", "from", labels[source], port
    )


def pod_labels(objects: tuple[Object, ...], workload: str) -> dict[str, str]:
    """The labels of a workload's pods."""
    labels: dict[str, str] = of_kind(objects, "Deployment", "StatefulSet")[workload]["spec"]["template"]["metadata"][
        "labels"
    ]
    return labels


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector matches these labels."""
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in expressions)
    return all(labels.get(each["key"]) in each["values"] for each in expressions)


def _applies(policy: Object, direction: str, labels: dict[str, str]) -> bool:
    return direction in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"], labels)


def _allowed(specs: list[Object], direction: str, side: str, peer: dict[str, str], port: int) -> bool:
    """Whether policies allow a peer in the run's namespace. Without a policy, all peers are allowed."""
    rules = [rule for spec in specs for rule in spec.get(direction, ())]
    return not specs or any(
        any(each["port"] == port for each in rule["ports"])
        and any(selects(each["podSelector"], peer) for each in rule.get(side, ()) if "namespaceSelector" not in each)
        for rule in rules
    )
