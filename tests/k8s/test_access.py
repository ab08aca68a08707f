"""Access to a run on a cluster: TLS, certificates, network policies and secrets."""

import re
from pathlib import Path

import pytest

from actorq.config.sections import TransportConfig
from actorq.transport.security.identity import parse_identity
from actorq.transport.security.roles import ROLES
from tests.k8s.rendered_manifests import (
    K8S,
    WORKLOADS,
    containers,
    environment,
    is_let_through,
    of_kind,
    pod_labels,
    pods,
    render,
    selects,
    with_components,
)


def test_plain_text_is_explicit_and_never_in_production() -> None:
    for _, container in containers(render(K8S / "overlays" / "development")):
        assert environment(container)["ACTORQ_INSECURE"] == "true"
    for _, container in containers(render(K8S / "overlays" / "production")):
        assert "ACTORQ_INSECURE" not in environment(container)
        folder = environment(container)["ACTORQ_TRANSPORT__CERTIFICATES"]
        assert folder in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_probes_ask_for_health_and_never_speak_plain_grpc_to_a_server_with_tls() -> None:
    for _, container in containers(render(K8S / "overlays" / "development")):
        port = next(port["containerPort"] for port in container["ports"] if port["name"] == "grpc")
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["grpc"] == {"port": port}
        # A learner is alive while it restores its run, and ready after that.
        service = {"service": "actorq.v1.LearnerService"} if container["name"] == "learner" else {}
        assert container["readinessProbe"]["grpc"] == {"port": port, **service}
    for _, container in containers(render(K8S / "overlays" / "production")):
        paths = {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
        for probe, path in paths.items():
            assert "grpc" not in container[probe]
            assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_certificates_are_for_the_names_that_clients_use() -> None:
    production = render(K8S / "overlays" / "production")
    certificates = of_kind(production, "Certificate")
    for _, container in containers(production):
        for argument in container["args"]:
            if match := re.fullmatch(r"--(learner|quantizer)=(.+):\d+", argument):
                assert match[2] in certificates[match[1]]["spec"]["dnsNames"]
    for name in ("learner", "quantizer", "actor", "evaluator"):
        assert "127.0.0.1" in certificates[name]["spec"]["ipAddresses"], "port-forward"


def test_each_certificate_names_the_role_of_its_owner() -> None:
    production = render(K8S / "overlays" / "production")
    roles = {
        name: parse_identity(made["spec"]["uris"])
        for name, made in of_kind(production, "Certificate").items()
        if not made["spec"].get("isCA")
    }
    assert {name: identity.role for name, identity in roles.items()} == {name: name for name in roles}
    assert set(roles) == set(ROLES) - {"relay", "meter", "simulator"}
    assert {identity.run for identity in roles.values()} == {TransportConfig().run}
    for name, pod in pods(production).items():
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "certificates")
        assert volume["secret"] == {"secretName": f"{name}-tls", "defaultMode": 0o440}
        # Names of pods begin with the name of their Deployment or StatefulSet.
        assert roles[name].may_be_called(f"{name}-0")
        assert name == "learner" or name == "quantizer" or not roles[name].may_be_called("intruder")


PORTS = {"learner": 50051, "quantizer": 50052, "actor": 50053, "evaluator": 50053}


def test_policies_allow_only_connections_to_configured_peers() -> None:
    production = render(K8S / "overlays" / "production")
    told = {
        (name, match[1], int(match[2]))
        for name, pod in pods(production).items()
        for argument in pod["containers"][0]["args"]
        if (match := re.fullmatch(r"--(learner|quantizer)=\1:(\d+)", argument))
    }
    assert {(source, target) for source, target, _ in told} >= {("learner", "quantizer"), ("actor", "learner")}
    for source in WORKLOADS:
        for target, port in PORTS.items():
            expected = (source, target, port) in told
            assert is_let_through(production, source, target, port) is expected, f"{source} -> {target}"
            assert not is_let_through(production, source, target, 9090), "metrics are for those who monitor"


@pytest.mark.parametrize(
    ("label", "targets", "port"), [("actorq/monitoring", WORKLOADS, 9090), ("actorq/scaling", ("learner",), 50051)]
)
def test_labeled_namespaces_may_connect(label: str, targets: tuple[str, ...], port: int) -> None:
    production = render(K8S / "overlays" / "production")
    opened = [
        (policy["spec"]["podSelector"], [each["port"] for each in rule["ports"]])
        for policy in of_kind(production, "NetworkPolicy").values()
        for rule in policy["spec"].get("ingress", ())
        for peer in rule["from"]
        if peer.get("namespaceSelector") == {"matchLabels": {label: "true"}}
    ]
    assert [ports for _, ports in opened] == [[port]]
    assert {name for name in WORKLOADS if selects(opened[0][0], pod_labels(production, name))} == set(targets)


def test_every_pod_may_use_dns_and_all_else_is_closed_by_default() -> None:
    production = render(K8S / "overlays" / "production")
    policies = of_kind(production, "NetworkPolicy")
    everything = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert policies["default-deny"]["spec"] == everything
    (rule,) = policies["dns"]["spec"]["egress"]
    assert rule == {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    assert all(selects(policies["dns"]["spec"]["podSelector"], pod_labels(production, name)) for name in WORKLOADS)


def test_every_pod_pulls_images_with_the_secret_of_the_registry(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "plaintext", "pull-secret")
    accounts = of_kind(objects, "ServiceAccount")
    for pod in pods(objects).values():
        assert accounts[pod["serviceAccountName"]]["imagePullSecrets"] == [{"name": "registry"}]


def test_only_the_learner_gets_the_credentials_of_object_storage(tmp_path: Path) -> None:
    objects = with_components(tmp_path, "plaintext", "object-storage")
    secrets = {
        name: [source["secretRef"]["name"] for source in pod["containers"][0].get("envFrom", ())]
        for name, pod in pods(objects).items()
    }
    assert secrets == {"learner": ["object-storage"], "quantizer": [], "actor": [], "evaluator": []}
