"""The objects of a TrainingRun: valid, owned, separate from other runs, and matching its specification."""

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from actorq import __version__
from actorq_apps.cluster.manifests import component_of, parse, prepared
from actorq_apps.operator.naming import named
from actorq_apps.operator.render import MANIFESTS, WORKERS, Images, identity, objects
from tests.actorq_apps.operator.training_runs import SPECS, Object, training_run
from tests.k8s.rendered_manifests import K8S, is_let_through, render, selects

WORKLOADS = ("Deployment", "StatefulSet")
REPLICAS = {"learner": 1, "quantizer": 1, "actor": 2, "evaluator": 1}


def found(made: list[Object], kind: str, name: str) -> Object:
    (match,) = (each for each in made if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return match


def pod(made: list[Object], component: str) -> Object:
    kind = "StatefulSet" if component == "learner" else "Deployment"
    template: Object = found(made, kind, f"alpha-{component}")["spec"]["template"]["spec"]
    return template


def replicas(made: list[Object]) -> dict[str, int]:
    return {
        each["metadata"]["name"].removeprefix("alpha-"): each["spec"]["replicas"]
        for each in made
        if each["kind"] in WORKLOADS
    }


def walked(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All leaves and empty trees, each with its path."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    if not children:
        yield path, tree
    for key, value in children:
        yield from walked(value, (*path, str(key)))


@pytest.mark.parametrize(("name", "resting"), list(product(SPECS, ((), WORKERS))))
def test_objects_of_every_option_are_valid_and_owned(name: str, resting: tuple[str, ...]) -> None:
    run = training_run(**SPECS[name])
    made = objects(run, resting)
    for each in made:
        if each["apiVersion"] != "cert-manager.io/v1":
            kubernetes_validate.validate(each, "1.32", strict=True)
        metadata = each["metadata"]
        assert metadata["namespace"] == "lab"
        assert metadata["labels"]["actorq/run"] == "alpha"
        assert metadata["labels"]["app.kubernetes.io/version"] == __version__
        is_kept = each["kind"] == "PersistentVolumeClaim" and run.spec.checkpoint.retain
        assert [owner["uid"] for owner in metadata.get("ownerReferences", ())] == ([] if is_kept else [run.uid])
    assert len({(each["kind"], each["metadata"]["name"]) for each in made}) == len(made)


def test_rendering_twice_gives_the_same() -> None:
    run = training_run(**SPECS["full"])
    assert objects(run) == objects(run)


@pytest.mark.parametrize("name", SPECS)
def test_two_runs_in_a_namespace_share_no_name_and_no_selector(name: str) -> None:
    # The second name is a prefix of the names of the first run's objects.
    first, second = (objects(training_run(run, **SPECS[name])) for run in ("alpha", "alpha-learner"))
    keys = [{(each["kind"], each["metadata"]["name"]) for each in made} for made in (first, second)]
    assert not keys[0] & keys[1]
    for made, others in ((first, second), (second, first)):
        pods = [each["spec"]["template"]["metadata"]["labels"] for each in others if each["kind"] in WORKLOADS]
        selectors = [tree for each in made for tree in selectors_of(each)]
        assert len(selectors) >= 9
        assert not any(selects(selector, labels) for selector in selectors for labels in pods)


def selectors_of(manifest: Object) -> Iterator[Object]:
    """All selectors of pods in an object, as label selectors."""
    if manifest["kind"] == "Service":
        yield {"matchLabels": manifest["spec"]["selector"]}
        return
    pending: list[Any] = [manifest.get("spec")]
    while pending:
        tree = pending.pop()
        if isinstance(tree, dict):
            yield from (tree[key] for key in ("selector", "labelSelector", "podSelector") if key in tree)
            pending += tree.values()
        elif isinstance(tree, list):
            pending += tree


@pytest.mark.parametrize("name", SPECS)
def test_every_reference_is_to_an_object_of_the_run(name: str) -> None:
    run = training_run(**SPECS[name])
    made = objects(run)
    names = {each["metadata"]["name"] for each in made}
    for each in made:
        for path, value in walked(each):
            if {*path[-1:]} & {"serviceAccountName", "serviceName", "claimName"} or path[-2:] == ("configMap", "name"):
                assert value in {*names, "alpha-denied-certificates", "reader", "games", "sets"}, path
    services = {each["metadata"]["name"] for each in made if each["kind"] == "Service"}
    for each in made:
        if each["kind"] in WORKLOADS:
            for argument in each["spec"]["template"]["spec"]["containers"][0]["args"]:
                flag, _, address = argument.partition("=")
                if flag in ("--learner", "--quantizer", "--upstream"):
                    assert address.partition(":")[0] in services


def test_services_reach_the_pods_of_their_run() -> None:
    made = objects(training_run(relays={"replicas": 1}))
    for each in made:
        if each["kind"] == "Service":
            component = each["metadata"]["labels"]["app.kubernetes.io/component"]
            kind = "StatefulSet" if component == "learner" else "Deployment"
            labels = found(made, kind, f"alpha-{component}")["spec"]["template"]["metadata"]["labels"]
            pod_name = {"statefulset.kubernetes.io/pod-name": "alpha-learner-0"}
            assert each["spec"]["selector"].items() <= {**labels, **pod_name}.items()
    assert found(made, "Deployment", "alpha-actor")["spec"]["selector"]["matchLabels"]["actorq/run"] == "alpha"


def test_workloads_differ_from_those_of_kubectl_only_in_names() -> None:
    """Both use the manifests of `kubectl apply -k`."""
    source = [each for each in render(K8S / "overlays" / "production") if each["kind"] in WORKLOADS]
    theirs_by_name = {each["metadata"]["name"]: each for each in source}
    made = objects(training_run(tls={"mode": "issuer", "issuer": {"name": "ca"}}))
    assert set(theirs_by_name) == {"learner", "quantizer", "actor", "evaluator"}
    for name, theirs in theirs_by_name.items():
        ours = found(made, theirs["kind"], f"alpha-{name}")
        for path, value in walked(theirs["spec"]):
            here: Any = ours["spec"]
            # The production overlay sets priority classes, which the administrator defines.
            if path[-1] == "priorityClassName":
                continue
            for step in path:
                here = here[int(step)] if isinstance(here, list) else here[step]
            assert str(here).replace("alpha-", "") == str(value), path


def test_another_name_than_the_default_is_only_a_change_of_names(tmp_path: Path) -> None:
    """The same function renames the objects of an overlay for `actorq cluster up --name`."""
    text = yaml.safe_dump_all(render(K8S / "overlays" / "production"))
    overlay = [each for each in parse(text, "production") if each["kind"] != "Issuer"]
    ready = prepared(named(overlay, "beta", "beta"), "beta", "lab")
    found_names = {each["metadata"]["name"] for each in ready}
    assert {name for name in found_names if not name.startswith("beta-")} == {"data-beta-learner-0"}
    (scaler,) = (each for each in ready if each["kind"] == "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "beta-actor"


def test_secrets_and_settings_of_an_overlay_are_found_under_their_new_names() -> None:
    """Covers all kinds of references to a ConfigMap and a Secret of the overlay. Other references keep their names."""

    def pod(own: str, other: str, account: str) -> Object:
        sources = [{"secretRef": {"name": name, "optional": True}} for name in (own, other)]
        env = [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": own, "key": "a"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": f"{own}-map", "key": "b"}}},
        ]
        projected = [{"secret": {"name": own}}, {"configMap": {"name": f"{own}-map"}}]
        container = {"name": "learner", "envFrom": [*sources, {"configMapRef": {"name": f"{own}-map"}}], "env": env}
        volumes = [{"name": "v", "projected": {"sources": projected}}]
        pulled = [{"name": own}, {"name": "learner"}]
        accounts = {"serviceAccountName": account, "imagePullSecrets": pulled}
        return {"containers": [container], "volumes": volumes, **accounts}

    def overlay(prefix: str) -> list[Object]:
        learner = {"spec": {"template": {"spec": pod(f"{prefix}mine", "yours", f"{prefix}learner")}}}
        kinds = (("Secret", "mine"), ("ConfigMap", "mine-map"), ("ServiceAccount", "learner"))
        made = [{"kind": kind, "metadata": {"name": f"{prefix}{name}"}} for kind, name in kinds]
        return [*made, {"kind": "StatefulSet", "metadata": {"name": f"{prefix}learner"}, **learner}]

    found = named(overlay(""), "beta", "beta")
    found[-1]["spec"]["template"].pop("metadata")
    assert found == overlay("beta-")


def test_an_ingress_of_an_overlay_leads_to_the_renamed_service() -> None:
    def overlay(prefix: str) -> list[Object]:
        backend = {"service": {"name": f"{prefix}learner", "port": {"name": "grpc"}}}
        specs: dict[str, Object] = {"Service": {}, "Ingress": {"defaultBackend": backend}}
        return [{"kind": kind, "metadata": {"name": f"{prefix}learner"}, "spec": spec} for kind, spec in specs.items()]

    assert named(overlay(""), "beta", "beta") == overlay("beta-")


def test_the_configuration_is_that_of_the_run() -> None:
    made = objects(training_run(**SPECS["full"]))
    tree = yaml.safe_load(found(made, "ConfigMap", "alpha-run-config")["data"]["config.yaml"])
    assert tree == {
        "environment": "CartPole-v1", "algorithm": "dqn", "seed": 7, "actors": 8, "learner": {"device": "cuda"},
        "policy_export": {"url": "s3://policies/alpha", "scheme": "int8"}, "max_seconds": 86_400,
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", ["sac", "xqc"])
def test_the_configuration_has_the_settings_of_the_runs_algorithm(algorithm: str) -> None:
    run = training_run(environment="Pendulum-v1", algorithm=algorithm, config={algorithm: {"batch_size": 64}})
    tree = yaml.safe_load(found(objects(run), "ConfigMap", "alpha-run-config")["data"]["config.yaml"])
    assert (tree["algorithm"], tree[algorithm]) == (algorithm, {"batch_size": 64})


def test_a_changed_setting_replaces_pods_and_a_changed_number_of_actors_does_not() -> None:
    templates = []
    changes: list[Object] = [{}, {"actors": {"replicas": 9}}, {"config": {"seed": 3}}]
    for spec in changes:
        made = objects(training_run(**spec))
        templates.append(found(made, "Deployment", "alpha-actor")["spec"]["template"])
    assert templates[0] == templates[1] != templates[2]


def test_a_run_that_is_over_keeps_learner_and_quantizer() -> None:
    run = training_run(relays={"replicas": 2})
    assert replicas(objects(run)) == {**REPLICAS, "relay": 2}
    assert replicas(objects(run, WORKERS)) == {
        "learner": 1, "quantizer": 1, "actor": 0, "evaluator": 0, "relay": 0,
    }  # fmt: skip


@pytest.mark.parametrize("resting", [(), WORKERS])
def test_a_suspended_run_has_no_pods(resting: tuple[str, ...]) -> None:
    assert set(replicas(objects(training_run(suspend=True), resting)).values()) == {0}


def test_pods_match_the_specification() -> None:
    made = objects(training_run(**SPECS["full"]))
    images = {name: pod(made, name)["containers"][0]["image"] for name in (*REPLICAS, "relay")}
    assert images == {
        "learner": "registry/l:2",
        "quantizer": "registry/q@sha256:0",
        "relay": "registry/q@sha256:0",
        "actor": "registry/a:2",
        "evaluator": "registry/a:2",
    }
    actor, learner = pod(made, "actor"), pod(made, "learner")
    assert actor["containers"][0]["resources"]["requests"]["cpu"] == "500m"
    assert actor["containers"][0]["resources"]["limits"] == {
        "cpu": "2",
        "memory": "512Mi",
        "ephemeral-storage": "512Mi",
    }
    assert {each["key"] for each in actor["tolerations"]} >= {"batch", "cloud.google.com/gke-spot"}
    assert (actor["nodeSelector"], actor["priorityClassName"]) == ({"pool": "cheap"}, "low")
    assert learner["containers"][0]["resources"]["limits"] == {
        "cpu": "8", "memory": "64Gi", "ephemeral-storage": "512Mi", "nvidia.com/gpu": "2",
    }  # fmt: skip
    assert {each["key"] for each in learner["tolerations"]} == {"nvidia.com/gpu", "team"}
    assert pod(made, "quantizer")["containers"][0]["resources"]["requests"]["cpu"] == "1"
    assert pod(made, "evaluator")["containers"][0]["resources"]["limits"]["memory"] == "1Gi"
    claims = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "PersistentVolumeClaim"}
    sizes = {name: each["resources"]["requests"]["storage"] for name, each in claims.items()}
    assert sizes == {"data-alpha-learner-0": "50Gi", "alpha-policies": "4Gi"}
    assert {each["storageClassName"] for each in claims.values()} == {"fast"}
    accounts = [each for each in made if each["kind"] == "ServiceAccount"]
    assert len(accounts) == 4
    assert all(each["imagePullSecrets"] == [{"name": "registry"}] for each in accounts)


def test_requests_certificates_only_from_the_given_issuer() -> None:
    made = objects(training_run(**SPECS["issuer"]))
    wanted = [each for each in made if each["apiVersion"] == "cert-manager.io/v1"]
    assert {each["kind"] for each in wanted} == {"Certificate"}
    assert {each["spec"]["secretName"] for each in wanted} >= {"alpha-learner-tls", "alpha-relay-tls"}
    for each in wanted:
        assert each["spec"]["issuerRef"] == {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "company"}
        assert each["spec"]["uris"][0].startswith(f"spiffe://actorq/run/{identity(training_run())}/role/")
    learner = found(made, "Certificate", "alpha-learner")["spec"]["dnsNames"]
    assert {"alpha-learner", "alpha-learner.lab", "alpha-learner.lab.svc"} <= set(learner)


def test_services_have_certificates_with_tls_and_the_insecure_flag_without() -> None:
    for mode, secure in (("none", False), ("generated", True)):
        for each in objects(training_run(tls={"mode": mode})):
            if each["kind"] in WORKLOADS:
                names = {variable["name"] for variable in each["spec"]["template"]["spec"]["containers"][0]["env"]}
                assert ("ACTORQ_INSECURE" in names) is not secure
                assert ("ACTORQ_TRANSPORT__CERTIFICATES" in names) is secure


def test_network_policies_close_the_run_and_leave_other_pods_alone() -> None:
    policies = [each for each in objects(training_run(networkPolicies=True)) if each["kind"] == "NetworkPolicy"]
    assert policies
    assert not any(selects(each["spec"]["podSelector"], {"app": "other"}) for each in policies)
    made = tuple(objects(training_run(networkPolicies=True)))
    for source, target, port, expected in (
        ("actor", "learner", 50051, True), ("learner", "quantizer", 50052, True), ("learner", "actor", 50053, False),
    ):  # fmt: skip
        assert is_let_through(made, f"alpha-{source}", f"alpha-{target}", port) is expected


def test_the_manifests_are_found_beside_the_sources() -> None:
    assert (MANIFESTS / "base" / "kustomization.yaml").is_file()


def test_other_manifests_replace_the_default_ones(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    learner = tmp_path / "k8s" / "base" / "learner.yaml"
    learner.write_text(learner.read_text().replace("GracePeriodSeconds: 60", "GracePeriodSeconds: 70"))
    made = objects(training_run(), manifests=tmp_path / "k8s")
    assert pod(made, "learner")["terminationGracePeriodSeconds"] == 70


@pytest.mark.parametrize(("checkpoint", "secret"), [({}, "object-storage"), ({"secret": "bucket"}, "bucket")])
@pytest.mark.parametrize(
    "storage",
    [
        {"config": {"checkpoint": {"object_storage": "s3://runs/alpha"}}},
        {"config": {"policy_export": {"url": "s3://runs/alpha"}}},
        {"policyExport": {"url": "s3://runs/alpha"}},
    ],
)
def test_the_learner_gets_the_credentials_of_its_object_storage(
    storage: Object, checkpoint: Object, secret: str
) -> None:
    pods = {
        component_of(each): each["spec"]["template"]["spec"]["containers"][0].get("envFrom", [])
        for each in objects(training_run(**storage, checkpoint=checkpoint))
        if "template" in each.get("spec", {})
    }
    # Runs of a namespace may share the Secret, so its name does not contain the run's name.
    assert pods.pop("learner") == [{"secretRef": {"name": secret, "optional": True}}]
    assert not any(pods.values())
    without = objects(training_run(checkpoint=checkpoint))
    assert not any("object-storage" in str(each) for each in without if "template" in each.get("spec", {}))


def test_images_that_a_run_does_not_name_come_from_the_operators_registry() -> None:
    images = Images("registry.example/rl", "7", "Always", ("pull", "registry"))
    own: Object = {
        "images": {"actor": "other/actor:2"},
        "imagePullSecrets": [{"name": "registry"}],
        "relays": {"replicas": 1},
    }
    made = objects(training_run(**own), images=images)
    found = {}
    for each in made:
        if each["kind"] in ("Deployment", "StatefulSet"):
            (container,) = each["spec"]["template"]["spec"]["containers"]
            assert container["imagePullPolicy"] == "Always"
            found[each["metadata"]["name"]] = container["image"]
        if each["kind"] == "ServiceAccount":
            assert each["imagePullSecrets"] == [{"name": "registry"}, {"name": "pull"}]
    assert found == {
        "alpha-learner": "registry.example/rl/actorq-learner:7",
        "alpha-quantizer": "registry.example/rl/actorq-quantizer:7",
        "alpha-relay": "registry.example/rl/actorq-quantizer:7",
        "alpha-actor": "other/actor:2",
        "alpha-evaluator": "other/actor:2",
    }


@pytest.mark.parametrize(
    ("images", "name"),
    [
        (Images(), f"actorq-actor:{__version__}"),
        (Images(registry="localhost:5000"), f"localhost:5000/actorq-actor:{__version__}"),
        (Images(tag="dev"), "actorq-actor:dev"),
        (Images("lab", digests={"actorq-actor": "sha256:1"}), f"lab/actorq-actor:{__version__}@sha256:1"),
    ],
)
def test_keeps_images_that_the_operators_settings_do_not_change(images: Images, name: str) -> None:
    assert images.named(f"actorq-actor:{__version__}") == name
    assert objects(training_run(), images=Images()) == objects(training_run())
