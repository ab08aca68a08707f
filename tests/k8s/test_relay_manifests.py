"""Relays on Kubernetes: the component adds them to a run and connects actors to them. They follow the rules of other
pods.
"""

import re
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from actorq.config.run_config import RunConfig
from actorq.process import ProcessSettings, parse_arguments
from quantizer_service.process import QuantizerProcessSettings
from tests.k8s.rendered_manifests import (
    K8S,
    WORKLOADS,
    Object,
    containers,
    environment,
    of_kind,
    pods,
    render,
    with_components,
)

KUBERNETES = "1.32"
PLAIN = ("relays", "plaintext")
SECURE = ("relays", "mtls", "network-policies", "relays/mtls", "relays/network-policies")


@pytest.fixture(scope="module", params=[PLAIN, SECURE], ids=["plaintext", "mtls"])
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    return with_components(tmp_path_factory.mktemp("relays"), *request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    return with_components(tmp_path_factory.mktemp("plain"), *PLAIN)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    return with_components(tmp_path_factory.mktemp("secure"), *SECURE)


def relay_of(manifests: tuple[Object, ...]) -> Object:
    pod = pods(manifests)["relay"]
    container: Object = pod["containers"][0]
    return container


def test_the_objects_of_relays_are_valid_and_need_no_rights_beyond_the_namespace(manifests: tuple[Object, ...]) -> None:
    of_relays = [each for each in manifests if "relay" in each["metadata"]["name"]]
    assert len(of_relays) >= 4
    for each in of_relays:
        assert "namespace" not in each["metadata"]
        if not each["apiVersion"].startswith("cert-manager.io"):
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_the_component_adds_relays_and_keeps_all_objects(manifests: tuple[Object, ...]) -> None:
    assert set(of_kind(manifests, "Deployment", "StatefulSet")) == {*WORKLOADS, "relay"}
    assert of_kind(manifests, "Deployment")["relay"]["spec"]["replicas"] > 1


def test_actors_get_their_policies_from_relays_and_these_from_the_quantizer(manifests: tuple[Object, ...]) -> None:
    policies_from = {
        name: [argument for argument in pod["containers"][0]["args"] if argument.startswith("--quantizer=")]
        for name, pod in pods(manifests).items()
    }
    assert policies_from["actor"] == ["--quantizer=relay:50052"]
    assert policies_from["learner"] == policies_from["evaluator"] == ["--quantizer=quantizer:50052"]
    assert "--upstream=quantizer:50052" in relay_of(manifests)["args"]


def test_a_relay_accepts_its_flags(manifests: tuple[Object, ...], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(of_kind(manifests, "ConfigMap")["run-config"]["data"]["config.yaml"])
    arguments = [each.replace("/etc/actorq/config.yaml", str(config)) for each in relay_of(manifests)["args"]]
    models = (RunConfig, ProcessSettings, QuantizerProcessSettings)
    *_, settings = parse_arguments("actorq quantizer", "", models, arguments)
    assert isinstance(settings, QuantizerProcessSettings)
    assert settings.upstream == "quantizer:50052"
    assert not {"store", "read_only"} & settings.model_fields_set


def test_relays_pass_the_restricted_level_and_have_no_token_for_the_api(manifests: tuple[Object, ...]) -> None:
    pod, container = pods(manifests)["relay"], relay_of(manifests)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert of_kind(manifests, "ServiceAccount")["relay"]["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all({"configMap", "emptyDir", "secret"} & set(volume) for volume in pod["volumes"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_relays_have_the_probes_and_resources_of_the_quantizer(manifests: tuple[Object, ...]) -> None:
    relay, quantizer = relay_of(manifests), pods(manifests)["quantizer"]["containers"][0]
    for name in ("image", "ports", "startupProbe", "readinessProbe", "livenessProbe", "securityContext"):
        assert relay[name] == quantizer[name]
    for what in ("requests", "limits"):
        assert {"cpu", "memory", "ephemeral-storage"} <= set(relay["resources"][what])


def test_the_service_and_the_budget_select_the_pods(manifests: tuple[Object, ...]) -> None:
    labels = of_kind(manifests, "Deployment")["relay"]["spec"]["template"]["metadata"]["labels"]
    service = of_kind(manifests, "Service")["relay"]["spec"]
    selectors = (
        service["selector"],
        of_kind(manifests, "PodDisruptionBudget")["relay"]["spec"]["selector"]["matchLabels"],
        of_kind(manifests, "Deployment")["relay"]["spec"]["selector"]["matchLabels"],
    )
    for selector in selectors:
        assert selector["app.kubernetes.io/component"] == "relay"
        assert selector.items() <= labels.items()
    named = {port["name"]: port["containerPort"] for port in relay_of(manifests)["ports"]}
    assert {port["port"]: named[port["targetPort"]] for port in service["ports"]} == {50052: 50052, 9090: 9090}


def test_probes_and_threads_of_a_relay_are_those_of_the_quantizer(plain: tuple[Object, ...]) -> None:
    relay, (quantizer,) = relay_of(plain), pods(plain)["quantizer"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert relay[probe] == quantizer[probe]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        variables = [each for each in relay["env"] if each["name"] == name]
        assert variables == [each for each in quantizer["env"] if each["name"] == name] != []


def test_every_pod_is_in_plain_text_or_none(plain: tuple[Object, ...], secure: tuple[Object, ...]) -> None:
    for _, container in containers(plain):
        assert environment(container)["ACTORQ_INSECURE"] == "true"
    for _, container in containers(secure):
        assert "ACTORQ_INSECURE" not in environment(container)
        folder = environment(container)["ACTORQ_TRANSPORT__CERTIFICATES"]
        assert folder in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert not any("grpc" in container[probe] for probe in ("startupProbe", "readinessProbe", "livenessProbe"))


def test_certificates_are_for_the_names_that_clients_use(secure: tuple[Object, ...]) -> None:
    certificates = of_kind(secure, "Certificate")
    secrets = {each["spec"]["secretName"] for each in certificates.values()}
    mounted = [volume["secret"]["secretName"] for volume in pods(secure)["relay"]["volumes"] if "secret" in volume]
    assert mounted == ["relay-tls"]
    assert set(mounted) <= secrets
    for _, container in containers(secure):
        for argument in container["args"]:
            if match := re.fullmatch(r"--(?:learner|quantizer|upstream)=(.+):\d+", argument):
                assert match[1] in certificates[match[1]]["spec"]["dnsNames"]


def test_policies_allow_actors_to_reach_relays_and_relays_the_quantizer(secure: tuple[Object, ...]) -> None:
    policies = of_kind(secure, "NetworkPolicy").values()
    for caller, called in (("actor", "relay"), ("relay", "quantizer")):
        for direction, peers, of, other in (("egress", "to", caller, called), ("ingress", "from", called, caller)):
            rules = [
                rule
                for policy in policies
                if selects(policy["spec"]["podSelector"], of)
                for rule in policy["spec"].get(direction, [])
            ]
            assert any(
                selects(peer.get("podSelector"), other) and {"protocol": "TCP", "port": 50052} in rule["ports"]
                for rule in rules
                for peer in rule.get(peers, [])
            ), f"{direction}: {caller} to {called}"


def selects(selector: Object | None, component: str) -> bool:
    if selector is None:
        return False
    key = "app.kubernetes.io/component"
    labels = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    if key not in labels and not expressions:
        return False
    return labels.get(key, component) == component and all(
        component in each["values"] for each in expressions if each["key"] == key
    )


def test_the_component_refuses_an_actor_with_another_address(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="testing value"):
        _with_other_arguments(tmp_path)


def _with_other_arguments(folder: Path) -> None:
    base = folder / "changed"
    base.mkdir()
    (folder / "run").mkdir()
    patch = [{"op": "add", "path": "/spec/template/spec/containers/0/args/0", "value": "--name=first"}]
    kustomization = {
        "resources": ["../k8s/base"],
        "patches": [{"target": {"kind": "Deployment", "name": "actor"}, "patch": yaml.safe_dump(patch)}],
    }
    shutil.copytree(K8S, folder / "k8s")
    (base / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    run = {"resources": ["../changed"], "components": ["../k8s/components/relays"]}
    (folder / "run" / "kustomization.yaml").write_text(yaml.safe_dump(run))
    render(folder / "run")
