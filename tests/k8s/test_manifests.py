"""Checks the manifests without a cluster."""

import json
import re
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from actorq import __version__
from actorq.config.run_config import RunConfig
from actorq_apps.cluster import deployment
from actorq_apps.cluster.manifests import prepared
from sitegen import metrics
from tests.actorq_apps.cluster.cluster_api import cluster_api
from tests.k8s.rendered_manifests import (
    K8S,
    OPTIONAL,
    OVERLAYS,
    ROOT,
    WORKLOADS,
    Object,
    containers,
    of_kind,
    pod_labels,
    pods,
    render,
    with_components,
)

# Kinds of other operators, which have their own schemas.
OPERATORS = {"cert-manager.io/v1", "monitoring.coreos.com/v1", "keda.sh/v1alpha1"}
KUBERNETES = "1.32"
# Seconds on one free core, from the container's start until it listens (docs/how-to/kubernetes.md).
NORMAL_START_S, NORMAL_LEARNER_START_S = 3, 5
RESTRICTED_VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI", "csi"}


@pytest.fixture(scope="module", params=[*OVERLAYS, *OPTIONAL])
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    name: str = request.param
    if name in OVERLAYS:
        return render(K8S / "overlays" / name)
    folder = tmp_path_factory.mktemp("component")
    return with_components(folder, *(("keda", "mtls") if name == "keda-mtls" else ("plaintext", name)))


@cache
def _valid(text: str) -> None:
    kubernetes_validate.validate(json.loads(text), KUBERNETES, strict=True)


def test_objects_are_valid_and_of_known_kinds(manifests: tuple[Object, ...]) -> None:
    for each in (*manifests, *render(K8S / "cluster")):
        if each["apiVersion"] not in OPERATORS:
            _valid(json.dumps(each))


def test_validation_refuses_an_unknown_field() -> None:
    service = of_kind(render(K8S / "base"), "Service")["learner"]
    wrong = {**service, "spec": {**service["spec"], "prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        _valid(json.dumps(wrong))


def test_a_run_needs_no_rights_beyond_its_namespace(manifests: tuple[Object, ...]) -> None:
    cluster_wide = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    assert not cluster_wide & {each["kind"] for each in manifests}
    assert not any("namespace" in each["metadata"] for each in manifests)


def test_no_object_names_the_original_namespace_after_a_change(manifests: tuple[Object, ...]) -> None:
    assert "learner.actorq" in json.dumps(with_addresses(manifests))
    moved = json.dumps(prepared(with_addresses(manifests), "demo", "lab"))
    assert "learner.lab" in moved
    assert not re.search(r"\.actorq\b", moved)


def with_addresses(manifests: tuple[Object, ...]) -> list[Object]:
    """The policies of the overlay, with at least one address."""
    example = {
        "apiVersion": "v1",
        "kind": "Example",
        "metadata": {"name": "example"},
        "spec": "learner.actorq.svc:50051",
    }
    return [*manifests, example]


def test_down_finds_every_object_of_up(manifests: tuple[Object, ...]) -> None:
    with cluster_api() as api:
        for version, kind in {(each["apiVersion"], each["kind"]) for each in manifests}:
            others = [each for each in api.kinds.get(version, []) if each[0] != kind]
            api.kinds[version] = [*others, (kind, f"{kind.lower()}s", True)]
        deployment.apply(api.cluster(), prepared(manifests, "demo", "lab"), "demo", lambda: False)
        assert len(api.objects) > len(manifests), "the volume of the learner, too"
        deployment.delete(api.cluster(), delete_volume=True, say=print)
        assert not api.objects


def test_pods_pass_the_restricted_level(manifests: tuple[Object, ...]) -> None:
    for pod in pods(manifests).values():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
        for volume in pod["volumes"]:
            assert set(volume) - {"name"} <= RESTRICTED_VOLUMES, volume
    for _, container in containers(manifests):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not security.get("privileged")
        assert not any("hostPort" in port for port in container["ports"])


def test_pods_have_no_token_for_the_api(manifests: tuple[Object, ...]) -> None:
    accounts = of_kind(manifests, "ServiceAccount")
    for pod in pods(manifests).values():
        assert pod["automountServiceAccountToken"] is False
        assert accounts[pod["serviceAccountName"]]["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False


def test_containers_have_requests_limits_and_probes(manifests: tuple[Object, ...]) -> None:
    for _, container in containers(manifests):
        for what in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"][what])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]


def test_images_are_pinned(manifests: tuple[Object, ...]) -> None:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "actorq" / "__init__.py").read_text())
    assert version
    for _, container in containers(manifests):
        assert re.fullmatch(rf"actorq-(learner|quantizer|actor):{re.escape(version[1])}", container["image"])


def test_pods_end_later_than_their_services_drain(manifests: tuple[Object, ...]) -> None:
    config = RunConfig.model_validate(
        yaml.safe_load(of_kind(manifests, "ConfigMap")["run-config"]["data"]["config.yaml"])
    )
    for pod in pods(manifests).values():
        assert pod["terminationGracePeriodSeconds"] > config.transport.drain_s


def test_selectors_select_the_pods(manifests: tuple[Object, ...]) -> None:
    workloads = of_kind(manifests, "Deployment", "StatefulSet")
    assert set(workloads) == set(WORKLOADS)
    for name, workload in workloads.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        expected = {"app.kubernetes.io/name": "actorq", "app.kubernetes.io/component": name}
        assert workload["spec"]["selector"] == {"matchLabels": expected}
        assert expected.items() <= labels.items()
    for name, service in of_kind(manifests, "Service").items():
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        assert component == name.removesuffix("-headless")
        named = {port["name"]: port["containerPort"] for port in pods(manifests)[component]["containers"][0]["ports"]}
        for port in service["spec"]["ports"]:
            assert named[port["targetPort"]] == port["port"]


def test_only_the_first_learner_gets_calls(manifests: tuple[Object, ...]) -> None:
    # After `kubectl scale statefulset/learner --replicas=2`. Every version of Kubernetes sets the label.
    selector = of_kind(manifests, "Service")["learner"]["spec"]["selector"]
    assert selector["statefulset.kubernetes.io/pod-name"] == "learner-0"
    (learner,) = pods(manifests)["learner"]["containers"]
    names = {each["name"]: each["valueFrom"]["fieldRef"] for each in learner["env"] if "fieldRef" in str(each)}
    assert names["ACTORQ_POD"] == {"fieldPath": "metadata.name"}


def test_libraries_start_as_many_threads_as_the_limit_has_cores(manifests: tuple[Object, ...]) -> None:
    for _, container in containers(manifests):
        sources = {each["name"]: each.get("valueFrom") for each in container["env"]}
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            assert sources[name] == {"resourceFieldRef": {"resource": "limits.cpu"}}
        assert container["resources"]["limits"]["cpu"]


def test_a_usual_start_ends_before_the_first_probe(manifests: tuple[Object, ...]) -> None:
    for name, pod in pods(manifests).items():
        probe = pod["containers"][0]["startupProbe"]
        # Three times that, because a node has less than one core for each pod of a run that starts.
        assert probe["initialDelaySeconds"] >= 3 * (NORMAL_LEARNER_START_S if name == "learner" else NORMAL_START_S)
        assert probe["periodSeconds"] * probe["failureThreshold"] >= 60, "a slow node is no reason to kill it"


def test_volumes_and_secrets_that_are_mounted_exist(manifests: tuple[Object, ...]) -> None:
    secrets = {each["spec"]["secretName"] for each in of_kind(manifests, "Certificate").values()}
    maps, claims = of_kind(manifests, "ConfigMap"), of_kind(manifests, "PersistentVolumeClaim")
    templates = of_kind(manifests, "StatefulSet")["learner"]["spec"]["volumeClaimTemplates"]
    for name, pod in pods(manifests).items():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        if name == "learner":
            volumes |= {template["metadata"]["name"]: {} for template in templates}
        for mount in pod["containers"][0]["volumeMounts"]:
            volume = volumes.pop(mount["name"])
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
            if "configMap" in volume and not volume["configMap"].get("optional"):
                assert volume["configMap"]["name"] in maps
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        assert not volumes, "a volume is not mounted"


def test_the_learner_is_scheduled_before_actors() -> None:
    classes = of_kind(render(K8S / "cluster"), "PriorityClass")
    production = pods(render(K8S / "overlays" / "production"))
    value = {name: classes[pod["priorityClassName"]]["value"] for name, pod in production.items()}
    assert value["learner"] == value["quantizer"] > value["actor"] == value["evaluator"]


def test_a_run_evicts_no_other_pods() -> None:
    classes = of_kind(render(K8S / "cluster"), "PriorityClass")
    assert {each["preemptionPolicy"] for each in classes.values()} == {"Never"}


def test_no_object_blocks_the_drain_of_a_node(manifests: tuple[Object, ...]) -> None:
    workloads = of_kind(manifests, "Deployment", "StatefulSet")
    budgets = of_kind(manifests, "PodDisruptionBudget")
    assert set(budgets) == {"actor"}
    for name, budget in budgets.items():
        spec = budget["spec"]
        assert spec["selector"] == workloads[name]["spec"]["selector"]
        # A percentage of one pod is rounded up to one.
        assert "minAvailable" not in spec
        assert int(spec["maxUnavailable"].removesuffix("%")) > 0
        assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def _expressions(dashboard: Any) -> str:
    return "\n".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


def test_the_dashboard_shows_existing_metrics() -> None:
    dashboard = of_kind(render(K8S / "overlays" / "production"), "ConfigMap")["actorq-dashboard"]["data"]["actorq.json"]
    documented = {each.name for each in metrics.documented()}
    shown = set(re.findall(r"\b(?:actorq|process)_\w+", _expressions(yaml.safe_load(dashboard))))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} <= documented


def test_every_object_has_a_version_label(manifests: tuple[Object, ...]) -> None:
    # An overlay labels the objects that components add, like the production overlay.
    base = {(each["kind"], each["metadata"]["name"]) for each in render(K8S / "base")}
    ours = [each for each in manifests if (each["kind"], each["metadata"]["name"]) in base]
    for each in (*ours, *render(K8S / "overlays" / "production"), *render(K8S / "operator")):
        assert each["metadata"]["labels"]["app.kubernetes.io/version"] == __version__
    for pod in (pod_labels(manifests, name) for name in WORKLOADS):
        assert pod["app.kubernetes.io/version"] == __version__
    (template,) = of_kind(manifests, "StatefulSet")["learner"]["spec"]["volumeClaimTemplates"]
    # Kubernetes does not allow changes here, so an upgrade with another version would be refused.
    assert "app.kubernetes.io/version" not in template["metadata"]["labels"]
