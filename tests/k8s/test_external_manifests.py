"""Simulators beside actors: the component adds a container to each actor's pod, and its pods follow all other rules."""

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from actor_service.process import ActorSettings
from actorq.config.run_config import RunConfig
from actorq.domain.environments import is_external
from actorq.process import ProcessSettings, parse_arguments
from actorq.transport.addresses import is_loopback, split_address
from actorq.transport.options import Certificates
from actorq.transport.security.identity import parse_identity
from actorq_apps.cluster.manifests import parse, prepared
from actorq_apps.operator.naming import named
from actorq_apps.operator.resource.training_run import TrainingRun
from tests.actorq_apps.operator.test_crd import SCHEMA
from tests.documentation.code_blocks import blocks
from tests.k8s.custom_resources import faults
from tests.k8s.rendered_manifests import (
    K8S,
    ROOT,
    Object,
    environment,
    is_let_through,
    of_kind,
    pods,
    render,
    with_components,
)

KUBERNETES = "1.32"
PLAIN = ("plaintext", "external")
SECURE = ("mtls", "external", "external/mtls", "network-policies")
PAGE = "docs/how-to/simulators-on-kubernetes.md"
EXAMPLE = ROOT / "examples" / "simulator" / "kubernetes"


@pytest.fixture(scope="module", params=[PLAIN, SECURE], ids=["plaintext", "mtls"])
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    return with_components(tmp_path_factory.mktemp("external"), *request.param)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    return with_components(tmp_path_factory.mktemp("secure"), *SECURE)


def containers_of(manifests: tuple[Object, ...]) -> tuple[Object, Object]:
    """The containers of an actor's pod: the actor, then the simulator."""
    actor, simulator = pods(manifests)["actor"]["containers"]
    return actor, simulator


def test_each_actor_has_a_simulator_and_there_is_no_evaluator(manifests: tuple[Object, ...]) -> None:
    assert set(of_kind(manifests, "Deployment", "StatefulSet")) == {"learner", "quantizer", "actor"}
    actor, simulator = containers_of(manifests)
    assert (actor["name"], simulator["name"]) == ("actor", "simulator")
    assert "--external" in actor["args"]
    annotations = of_kind(manifests, "Deployment")["actor"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["kubectl.kubernetes.io/default-container"] == "actor"
    for each in manifests:
        if each["apiVersion"] != "cert-manager.io/v1":
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_neither_container_waits_for_the_start_of_the_other(manifests: tuple[Object, ...]) -> None:
    pod = pods(manifests)["actor"]
    assert "initContainers" not in pod
    actor, simulator = containers_of(manifests)
    # An actor that waits for a simulator is alive and ready.
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(actor)
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"} & set(simulator)


def test_the_simulator_knows_the_port_of_its_actor_on_loopback(manifests: tuple[Object, ...]) -> None:
    actor, simulator = containers_of(manifests)
    host, port = split_address("ACTOR_ADDRESS", environment(simulator)["ACTOR_ADDRESS"])
    assert is_loopback(host)
    (listen,) = (each.partition("=")[2] for each in actor["args"] if each.startswith("--listen="))
    assert listen == f"0.0.0.0:{port}"


def test_the_actor_accepts_its_arguments(tmp_path: Path) -> None:
    objects = render(EXAMPLE)
    config = tmp_path / "config.yaml"
    config.write_text(of_kind(objects, "ConfigMap")["run-config"]["data"]["config.yaml"])
    actor, _ = containers_of(objects)
    arguments = [each.replace("/etc/actorq/config.yaml", str(config)) for each in actor["args"]]
    models = (RunConfig, ProcessSettings, ActorSettings)
    run, _, settings = parse_arguments("actorq actor", "", models, arguments)
    assert isinstance(settings, ActorSettings)
    assert settings.external
    assert isinstance(run, RunConfig)
    assert is_external(run.environment)


def test_simulators_pass_the_restricted_level_and_share_no_folder_with_actors(manifests: tuple[Object, ...]) -> None:
    pod = pods(manifests)["actor"]
    assert "shareProcessNamespace" not in pod
    actor, simulator = containers_of(manifests)
    assert simulator["securityContext"] == actor["securityContext"]
    mounted = {each["name"] for each in simulator["volumeMounts"]}
    assert mounted.isdisjoint(each["name"] for each in actor["volumeMounts"])
    assert mounted <= {each["name"] for each in pod["volumes"]}
    assert [each["mountPath"] for each in simulator["volumeMounts"] if each["name"] == "simulator-tmp"] == ["/tmp"]


def test_all_containers_of_an_actors_pod_have_the_requests_that_an_autoscaler_by_cpu_needs(
    manifests: tuple[Object, ...],
) -> None:
    for container in containers_of(manifests):
        for what in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"][what])


@pytest.mark.parametrize("autoscaler", ["hpa", "keda"])
def test_autoscalers_scale_actors_with_simulators(autoscaler: str, tmp_path: Path) -> None:
    objects = with_components(tmp_path, "plaintext", "external", autoscaler)
    assert "replicas" not in of_kind(objects, "Deployment")["actor"]["spec"]
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] == "actor"


def test_network_policies_let_nobody_connect_to_an_actor(secure: tuple[Object, ...], tmp_path: Path) -> None:
    without = with_components(tmp_path, "mtls", "network-policies")
    assert of_kind(secure, "NetworkPolicy") == of_kind(without, "NetworkPolicy")
    assert not is_let_through(secure, "learner", "actor", 50053)
    assert is_let_through(secure, "actor", "learner", 50051)


def test_a_simulator_has_the_certificate_of_its_role_and_no_other(secure: tuple[Object, ...]) -> None:
    certificates = of_kind(secure, "Certificate")
    identities = {
        made["spec"]["secretName"]: parse_identity(made["spec"]["uris"])
        for made in certificates.values()
        if not made["spec"].get("isCA")
    }
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in pods(secure)["actor"]["volumes"]}
    actor, simulator = containers_of(secure)
    folder = environment(simulator)["ACTOR_CERTIFICATES"]
    mounts = {each["mountPath"]: volumes[each["name"]] for each in simulator["volumeMounts"]}
    assert mounts[folder] == "simulator-tls"
    assert identities["simulator-tls"].role == "simulator"
    assert "server auth" not in certificates["simulator"]["spec"]["usages"]
    # The simulator reaches the actor by its address.
    assert "127.0.0.1" in certificates["actor"]["spec"]["ipAddresses"]
    assert [each for each in mounts.values() if each] == ["simulator-tls"]
    # An actor joins a second time for the evaluations, in another role and under a name that begins with its own.
    roles = environment(actor)["ACTORQ_TRANSPORT__CERTIFICATES"]
    of_actor = {each["mountPath"]: volumes[each["name"]] for each in actor["volumeMounts"]}
    for role in ("actor", "evaluator"):
        found = identities[str(of_actor[f"{roles}/{role}"])]
        assert found.role == role
        assert found.may_be_called("actor-5d9c-x-evaluator")
        assert not found.may_be_called("evaluator-5d9c-x")


def test_certificates_in_the_folders_of_a_pod_are_found_by_role(tmp_path: Path, secure: tuple[Object, ...]) -> None:
    actor, _ = containers_of(secure)
    roles = Path(environment(actor)["ACTORQ_TRANSPORT__CERTIFICATES"])
    assert {Path(each["mountPath"]).parent for each in actor["volumeMounts"]} >= {roles}
    for role in ("actor", "evaluator"):
        (tmp_path / role).mkdir()
        with pytest.raises(Exception, match=rf"{tmp_path / role} must hold"):
            Certificates.of(tmp_path, role)


def test_the_example_is_a_run_that_the_command_accepts() -> None:
    objects = render(EXAMPLE)
    overlay = parse(yaml.safe_dump_all(objects), "example")
    ready = prepared(named(overlay, "poles", "poles"), "poles", "lab")
    _, simulator = pods(tuple(ready))["poles-actor"]["containers"]
    assert simulator["image"] == "cart-pole:1"
    assert environment(simulator)["ACTOR_ADDRESS"] == "127.0.0.1:50053"
    for each in objects:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_the_image_of_the_example_starts_its_client() -> None:
    lines = (EXAMPLE.parent / "Dockerfile").read_text("utf-8").splitlines()
    assert 'ENTRYPOINT ["python", "/simulator/cart_pole.py"]' in lines
    assert "COPY cart_pole.py /simulator/" in lines
    assert (EXAMPLE.parent / "cart_pole.py").is_file()


def page_block(start: str) -> str:
    """The block of the page that begins with this text."""
    (found,) = (each.code for each in blocks(page=PAGE) if each.code.startswith(start))
    return found


def test_the_overlay_of_the_page_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "k8s").symlink_to(K8S)
    folder = tmp_path / "my-robots"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(page_block("# my-robots/kustomization.yaml"))
    (folder / "config.yaml").write_text("{environment: external/robot, algorithm: sac}")
    objects = render(folder)
    _, simulator = containers_of(objects)
    assert simulator["image"] == "REGISTRY/robot:3"
    assert "ACTOR_CERTIFICATES" in environment(simulator)
    assert parse(yaml.safe_dump_all(objects), "page")


def test_the_training_run_of_the_page_is_accepted() -> None:
    tree = yaml.safe_load(page_block("apiVersion: actorq.dev/v1alpha1"))
    assert faults(tree, SCHEMA) == []
    external = TrainingRun.of(tree).spec.actors.external
    assert external is not None
    assert external.secrets == ["license"]
