"""The operator's own objects: valid, restricted, and allowed exactly what it needs."""

import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from actorq import __version__
from actorq.operator.render import objects
from tests.actorq.operator.training_runs import SPECS, training_run
from tests.k8s.rendered_manifests import K8S, Object, containers, of_kind, pods, render, selects

FOLDERS = (K8S / "operator", K8S / "overlays" / "operator-namespaced")
WRITES = {"get", "list", "create", "patch", "delete"}


def allowed(made: tuple[Object, ...], kind: str) -> dict[tuple[str, str], set[str]]:
    """The verbs by group and resource of all roles of a kind."""
    rules = [rule for role in of_kind(made, kind).values() for rule in role["rules"]]
    return {
        (group, resource): set(rule["verbs"])
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_objects_are_valid(folder: Path) -> None:
    for each in render(folder):
        kubernetes_validate.validate(each, "1.32", strict=True)


def test_pods_pass_the_restricted_level_and_have_probes() -> None:
    made = render(K8S / "operator")
    for pod, container in containers(made):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["image"] == f"actorq-operator:{__version__}"
        ports = {each["name"] for each in container["ports"]}
        assert {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} <= ports
    assert len(pods(made)) == 1


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_operator_may_make_and_remove_every_object_of_a_run(spec: Object) -> None:
    rights = allowed(render(K8S / "operator"), "ClusterRole")
    for each in objects(training_run(**spec)):
        group = each["apiVersion"].rpartition("/")[0]
        plural = "networkpolicies" if each["kind"] == "NetworkPolicy" else f"{each['kind'].lower()}s"
        assert rights[group, plural] >= WRITES
    assert rights["", "secrets"] >= WRITES


def test_it_has_no_right_that_it_does_not_use() -> None:
    made = render(K8S / "operator")
    rights = allowed(made, "ClusterRole") | allowed(made, "Role")
    assert {place: verbs for place, verbs in rights.items() if verbs != WRITES} == {
        ("actorq.dev", "trainingruns"): {"get", "list", "watch"},
        ("actorq.dev", "trainingruns/status"): {"patch"},
        ("actorq.dev", "trainingruns/finalizers"): {"update"},
        ("", "pods"): {"list"},
        ("", "events"): {"list", "create"},
        ("coordination.k8s.io", "leases"): {"get", "create", "patch"},
    }


def test_it_may_not_change_specifications_or_give_rights() -> None:
    rights = allowed(render(K8S / "operator"), "ClusterRole")
    assert rights["actorq.dev", "trainingruns"] == {"get", "list", "watch"}
    assert not any(group == "rbac.authorization.k8s.io" or "*" in (group, resource) for group, resource in rights)
    assert not any("*" in verbs for verbs in rights.values())


def test_in_one_namespace_it_has_the_same_rights_there_and_none_elsewhere() -> None:
    cluster_wide, namespaced = (render(folder) for folder in FOLDERS)
    kinds = {each["kind"] for each in namespaced}
    assert not kinds & {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    assert {each["metadata"]["namespace"] for each in namespaced} == {"actorq"}
    assert allowed(namespaced, "Role").items() >= allowed(cluster_wide, "ClusterRole").items()
    for binding in of_kind(namespaced, "RoleBinding").values():
        assert binding["roleRef"]["kind"] == "Role"
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "actorq-operator", "namespace": "actorq"}
        ]  # fmt: skip
    (container,) = (container for _, container in containers(namespaced))
    assert "--namespace=actorq" in container["args"]


def test_its_monitor_is_a_component_of_it(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "monitored").mkdir()
    tree = {"resources": ["../k8s/operator"], "components": ["../k8s/components/operator-monitoring"]}
    (tmp_path / "monitored" / "kustomization.yaml").write_text(yaml.safe_dump(tree))
    made = render(tmp_path / "monitored")
    monitor = of_kind(made, "PodMonitor")["operator"]["spec"]
    pod = of_kind(made, "Deployment")["actorq-operator"]["spec"]["template"]
    assert selects(monitor["selector"], pod["metadata"]["labels"])
    (container,) = pod["spec"]["containers"]
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} == {each["name"] for each in container["ports"]}
