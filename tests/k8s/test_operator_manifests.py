"""The operator's own objects are valid and restricted, and have exactly the needed rights."""

import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from actorq import __version__
from actorq_apps.operator.render import objects
from tests.actorq_apps.operator.training_runs import SPECS, training_run
from tests.k8s.rendered_manifests import K8S, Object, containers, of_kind, pods, render, selects

FOLDERS = (K8S / "operator", K8S / "overlays" / "operator-namespaced")
WRITES = {"get", "list", "create", "patch", "delete"}
ACCESS = K8S / "operator-access"
Rights = dict[tuple[str, str], set[str]]
# With one of these rights, its holder can get the rights of any account in the namespace.
POWERFUL = {"secrets", "deployments", "statefulsets", "pods", "pods/exec", "jobs", "serviceaccounts/token"}


def allowed(made: tuple[Object, ...], kind: str, *names: str) -> Rights:
    """The verbs by group and resource of some of the operator's roles of a kind; of all without names."""
    roles = of_kind(made, kind)
    found: Rights = {}
    for rule in (
        rule for name in roles if name in names or (not names and "-operator" in name) for rule in roles[name]["rules"]
    ):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def everywhere(made: tuple[Object, ...]) -> Rights:
    """The rights of the operator in all namespaces."""
    bound = [each["roleRef"]["name"] for each in of_kind(made, "ClusterRoleBinding").values()]
    return allowed(made, "ClusterRole", *bound)


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
    (binding,) = render(ACCESS)
    made = render(K8S / "operator")
    rights = allowed(made, binding["roleRef"]["kind"], binding["roleRef"]["name"])
    assert binding["subjects"] == of_kind(made, "ClusterRoleBinding")["actorq-operator"]["subjects"]
    for each in objects(training_run(**spec)):
        group = each["apiVersion"].rpartition("/")[0]
        plural = "networkpolicies" if each["kind"] == "NetworkPolicy" else f"{each['kind'].lower()}s"
        assert rights[group, plural] >= WRITES
    assert rights["", "secrets"] >= WRITES


def test_the_operator_has_no_right_that_it_does_not_use() -> None:
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


def test_the_operator_may_not_change_specifications_or_give_rights() -> None:
    rights = allowed(render(K8S / "operator"), "ClusterRole")
    assert rights["actorq.dev", "trainingruns"] == {"get", "list", "watch"}
    assert not any(group == "rbac.authorization.k8s.io" or "*" in (group, resource) for group, resource in rights)
    assert not any(verbs & {"*", "escalate", "bind", "impersonate"} for verbs in rights.values())


def test_in_all_namespaces_the_operator_only_reads_runs_and_makes_events() -> None:
    rights = everywhere(render(K8S / "operator"))
    assert {place: verbs for place, verbs in rights.items() if place[0] != "actorq.dev"} == {
        ("", "events"): {"create"},
        ("coordination.k8s.io", "leases"): {"get"},
    }
    assert not any(resource in POWERFUL for _, resource in rights)


def test_the_view_and_edit_roles_of_a_namespace_cover_its_runs() -> None:
    roles = of_kind(render(K8S / "operator"), "ClusterRole")
    label = "rbac.authorization.k8s.io/aggregate-to-"
    given = {
        to: [role for role in roles.values() if role["metadata"]["labels"].get(f"{label}{to}") == "true"]
        for to in ("view", "edit", "admin")
    }
    verbs = {
        to: {
            (resource, verb)
            for role in found
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if rule["apiGroups"] == ["actorq.dev"]
        }
        for to, found in given.items()
    }
    assert {verb for _, verb in verbs["view"]} == {"get", "list", "watch"}
    assert verbs["edit"] == verbs["admin"] > verbs["view"]
    assert {("trainingruns", verb) for verb in ("create", "patch", "delete")} <= verbs["edit"]
    assert ("trainingruns/scale", "patch") in verbs["edit"]
    # Only the operator writes the status of a run.
    assert not [verb for resource, verb in verbs["edit"] if resource == "trainingruns/status" and verb != "get"]


def test_in_one_namespace_the_operator_has_the_same_rights_there_and_none_elsewhere() -> None:
    cluster_wide, namespaced = (render(folder) for folder in FOLDERS)
    kinds = {each["kind"] for each in namespaced}
    assert not kinds & {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    assert {each["metadata"]["namespace"] for each in namespaced} == {"actorq"}
    rights = allowed(namespaced, "Role")
    assert rights == allowed(cluster_wide, "ClusterRole") | allowed(cluster_wide, "Role")
    bound = {each["roleRef"]["name"] for each in of_kind(namespaced, "RoleBinding").values()}
    assert bound == set(of_kind(namespaced, "Role"))
    for binding in of_kind(namespaced, "RoleBinding").values():
        assert binding["roleRef"]["kind"] == "Role"
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "actorq-operator", "namespace": "actorq"}
        ]  # fmt: skip
    (container,) = (container for _, container in containers(namespaced))
    assert "--namespace=actorq" in container["args"]


def test_the_monitor_of_the_operator_is_a_component(tmp_path: Path) -> None:
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
