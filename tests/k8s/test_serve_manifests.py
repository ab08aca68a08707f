"""The policy server on Kubernetes: replicas with an exported policy, without a run."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from actor_service.external.serve import ServeSettings, parser_of
from actorq import __version__
from actorq.config.run_config import RunConfig
from actorq.config.sections import TransportConfig
from actorq.process import ProcessSettings, Sources
from actorq_apps.cluster.objects import ACTORQ
from tests.documentation.code_blocks import blocks
from tests.k8s.rendered_manifests import (
    K8S,
    ROOT,
    Object,
    containers,
    environment,
    of_kind,
    pods,
    render,
    selects,
)

KUBERNETES = "1.32"
PAGE = "docs/how-to/simulators-on-kubernetes.md"
SERVE = K8S / "serve"
PLAIN = ("components/plaintext",)
SECURE = ("serve/mtls", "serve/network-policies", "serve/hpa", "serve/monitoring")


def rendered(folder: Path, *components: str) -> tuple[Object, ...]:
    """The overlay of a user in `folder`: k8s/serve with components, and a policy."""
    (folder / "policy.onnx").write_bytes(b"\x00\xff")
    (folder / "policy.json").write_text("{}")
    (folder / "k8s").symlink_to(K8S)
    tree = {
        "resources": ["k8s/serve"],
        "components": [f"k8s/{name}" for name in components],
        "configMapGenerator": [{"name": "policy", "files": ["policy.onnx", "policy.json"]}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(tree))
    return render(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    return rendered(tmp_path_factory.mktemp("plain"), *PLAIN)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    return rendered(tmp_path_factory.mktemp("secure"), *SECURE)


@pytest.fixture(params=["plain", "secure"])
def manifests(request: pytest.FixtureRequest) -> tuple[Object, ...]:
    found: tuple[Object, ...] = request.getfixturevalue(request.param)
    return found


def server_of(manifests: tuple[Object, ...]) -> Object:
    container: Object
    (container,) = pods(manifests)["policy-server"]["containers"]
    return container


def test_the_objects_are_valid_and_need_no_rights_beyond_the_namespace(manifests: tuple[Object, ...]) -> None:
    kinds = {each["kind"] for each in manifests}
    assert kinds >= {"Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "ConfigMap"}
    assert not kinds & {"Namespace", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    for each in manifests:
        assert "namespace" not in each["metadata"]
        if each["apiVersion"] != "monitoring.coreos.com/v1":
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_a_policy_in_the_overlay_is_mounted_and_a_changed_one_replaces_the_pods(manifests: tuple[Object, ...]) -> None:
    (name,) = of_kind(manifests, "ConfigMap")
    volumes = {each["name"]: each for each in pods(manifests)["policy-server"]["volumes"]}
    assert volumes["policy"]["configMap"]["name"] == name
    mount = next(each for each in server_of(manifests)["volumeMounts"] if each["name"] == "policy")
    assert mount["readOnly"] is True
    assert server_of(manifests)["args"][0] == f"{mount['mountPath']}/policy.onnx"
    # The name has the digest of the files.
    assert name.startswith("policy-")


def test_the_server_accepts_its_arguments(manifests: tuple[Object, ...]) -> None:
    container = server_of(manifests)
    assert container["command"] == ["python", "-m", "actor_service.external"]
    assert (ROOT / "actor_service" / "external" / "__main__.py").is_file()
    models = (RunConfig, ProcessSettings, ServeSettings)
    namespace = parser_of(models).parse_args(container["args"])
    process = Sources.read(models, namespace).resolve(ProcessSettings)
    (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == "grpc")
    assert process.listen == f"0.0.0.0:{port}"
    assert not process.insecure


def test_replicas_are_at_least_two_and_drains_remove_one_at_a_time(manifests: tuple[Object, ...]) -> None:
    deployment = of_kind(manifests, "Deployment")["policy-server"]["spec"]
    scaler = of_kind(manifests, "HorizontalPodAutoscaler")
    assert ("replicas" in deployment) is not bool(scaler)
    smallest = scaler["policy-server"]["spec"]["minReplicas"] if scaler else deployment["replicas"]
    assert smallest >= 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    budget = of_kind(manifests, "PodDisruptionBudget")["policy-server"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"] == deployment["selector"]


def test_streams_have_time_to_move_before_the_kubelet_kills_the_pod(manifests: tuple[Object, ...]) -> None:
    pod = pods(manifests)["policy-server"]
    (_, seconds) = server_of(manifests)["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + TransportConfig().drain_s


def test_the_service_selects_only_policy_servers(manifests: tuple[Object, ...]) -> None:
    labels = of_kind(manifests, "Deployment")["policy-server"]["spec"]["template"]["metadata"]["labels"]
    service = of_kind(manifests, "Service")["policy-server"]["spec"]
    assert service["selector"].items() <= labels.items()
    named = {each["name"]: each["containerPort"] for each in server_of(manifests)["ports"]}
    assert {each["port"]: named[each["targetPort"]] for each in service["ports"]} == {50060: 50060}
    # `actorq cluster` and the policies of runs in this namespace leave policy servers alone.
    key, _, value = ACTORQ.partition("=")
    assert labels[key] != value


def test_probes_work_with_and_without_tls(plain: tuple[Object, ...], secure: tuple[Object, ...]) -> None:
    paths = {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    for manifests in (plain, secure):
        for probe, path in paths.items():
            assert server_of(manifests)[probe]["httpGet"] == {"path": path, "port": "metrics"}
        variables = environment(server_of(manifests))
        assert (variables["ACTORQ_METRICS"], variables["ACTORQ_OPEN_METRICS"]) == ("0.0.0.0:9090", "true")


def test_pods_pass_the_restricted_level_and_have_no_token(manifests: tuple[Object, ...]) -> None:
    for pod, container in containers(manifests):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] in of_kind(manifests, "ServiceAccount")
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        for what in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"][what])


def test_a_server_refuses_to_start_until_the_overlay_chooses_plain_text_or_certificates(
    plain: tuple[Object, ...], secure: tuple[Object, ...]
) -> None:
    bare = environment(server_of(render(SERVE)))
    assert not {"ACTORQ_INSECURE", "ACTORQ_TRANSPORT__CERTIFICATES"} & set(bare)
    assert environment(server_of(plain))["ACTORQ_INSECURE"] == "true"
    variables = environment(server_of(secure))
    assert "ACTORQ_INSECURE" not in variables
    mounts = {each["mountPath"]: each["name"] for each in server_of(secure)["volumeMounts"]}
    volumes = {each["name"]: each for each in pods(secure)["policy-server"]["volumes"]}
    mounted = volumes[mounts[variables["ACTORQ_TRANSPORT__CERTIFICATES"]]]
    assert mounted["secret"] == {"secretName": "policy-server-tls", "defaultMode": 0o440}
    # No training run accepts the server's certificate.
    assert variables["ACTORQ_TRANSPORT__RUN"] != TransportConfig().run


def test_only_clients_and_monitoring_may_connect(secure: tuple[Object, ...]) -> None:
    policy = of_kind(secure, "NetworkPolicy")["policy-server"]["spec"]
    labels = of_kind(secure, "Deployment")["policy-server"]["spec"]["template"]["metadata"]["labels"]
    assert selects(policy["podSelector"], labels)
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    ports = [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]]
    assert ports == [[50060], [9090]]
    clients, monitoring = (rule["from"] for rule in policy["ingress"])
    assert clients == [{"podSelector": {"matchLabels": {"actorq/policy-client": "true"}}}]
    assert monitoring == [{"namespaceSelector": {"matchLabels": {"actorq/monitoring": "true"}}}]


def test_monitors_and_autoscalers_find_the_servers(secure: tuple[Object, ...]) -> None:
    labels = of_kind(secure, "Deployment")["policy-server"]["spec"]["template"]["metadata"]["labels"]
    monitor = of_kind(secure, "PodMonitor")["policy-server"]["spec"]
    assert selects(monitor["selector"], labels)
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["metrics"]
    target = of_kind(secure, "HorizontalPodAutoscaler")["policy-server"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "policy-server"}


OVERLAY = "# my-policy/kustomization.yaml"


@pytest.mark.parametrize("patched", ["", "persistentVolumeClaim", "/served/policy.onnx"])
def test_the_overlays_of_the_page_serve_a_policy(patched: str, tmp_path: Path) -> None:
    codes = [each.code for each in blocks("yaml", PAGE)]
    tree = yaml.safe_load(next(each for each in codes if each.startswith(OVERLAY)))
    if patched:
        tree |= yaml.safe_load(next(each for each in codes if each.startswith("patches:") and patched in each))
    folder = tmp_path / "my-policy"
    folder.mkdir()
    (tmp_path / "k8s").symlink_to(K8S)
    (folder / "policy.onnx").write_bytes(b"\x00\xff")
    (folder / "policy.json").write_text("{}")
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(tree))
    objects = render(folder)
    assert {each["metadata"]["namespace"] for each in objects} == {"production"}
    volumes = {each["name"]: each for each in pods(objects)["policy-server"]["volumes"]}
    source = volumes["policy"]
    if patched == "persistentVolumeClaim":
        assert source == {"name": "policy", "persistentVolumeClaim": {"claimName": "policies", "readOnly": True}}
    else:
        assert source["configMap"]["name"].startswith("policy-")
    read = "/served/policy.onnx" if patched == "/served/policy.onnx" else "/policy/policy.onnx"
    assert server_of(objects)["args"][0] == read
    assert server_of(objects)["image"] == f"REGISTRY/actorq-actor:{__version__}"
