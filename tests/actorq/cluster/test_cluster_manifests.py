"""An overlay becomes objects that are ready to be applied, and anything else a line that says what is wrong."""

import os
from pathlib import Path

import pytest
import yaml

from actorq.cluster import manifests
from actorq.errors import UserError
from tests.actorq.cluster.cluster_objects import Object, overlay

IMAGE = "registry.example:5000/team/actorq-actor:2"


def by_kind(found: list[Object], kind: str) -> Object:
    return next(each for each in found if each["kind"] == kind)


def write(path: Path, documents: list[Object]) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_everything_carries_the_name_of_the_run() -> None:
    ready = manifests.prepared(overlay(), "demo", "lab", {})
    assert {each["metadata"]["labels"]["actorq/run"] for each in ready} == {"demo"}
    pods = by_kind(ready, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert "actorq/run" not in pods, "a selector of an existing run would no longer fit"


def test_workloads_come_after_what_they_need() -> None:
    kinds = [each["kind"] for each in manifests.prepared(overlay(), "demo", "lab", {})]
    assert kinds == ["ConfigMap", "PersistentVolumeClaim", "Service", "Deployment", "Deployment", "StatefulSet"]


def test_ports_name_their_protocol() -> None:
    service = by_kind(manifests.prepared(overlay(), "demo", "lab", {}), "Service")
    assert service["spec"]["ports"] == [{"port": 50051, "protocol": "TCP"}]


def test_the_overlay_itself_stays_as_it_was() -> None:
    given = overlay()
    manifests.prepared(given, "demo", "lab", {"actorq-actor": IMAGE})
    assert given == overlay()


def test_the_namespace_given_takes_the_place_of_the_overlays() -> None:
    given = overlay()
    for each in given:
        each["metadata"]["namespace"] = "original"
    binding: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "original"},
        "subjects": [{"namespace": "original"}, {"namespace": "keda"}],
    }
    given += [binding, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "original"}}]
    assert manifests.namespace_of(given[:-1]) == "original"
    ready = manifests.prepared(given, "demo", "lab", {})
    assert by_kind(ready, "Namespace")["metadata"]["name"] == "lab"
    assert {each["metadata"].get("namespace") for each in ready} == {"lab", None}
    assert by_kind(ready, "RoleBinding")["subjects"] == [{"namespace": "lab"}, {"namespace": "keda"}]


@pytest.mark.parametrize("written", [None, "actorq", "original"])
def test_names_with_a_namespace_in_any_field_follow_the_run(written: str | None) -> None:
    given = overlay()
    for each in given:
        if written:
            each["metadata"]["namespace"] = written
    fields: Object = {
        "triggers": [{"metadata": {"scalerAddress": "learner.actorq:50051"}}],
        "dnsNames": ["learner", "learner.actorq", "learner.actorq.svc", "learner.actorq.svc.cluster.local"],
        "others": ["learner.actorq.example.com", "learners.actorq", "learner.actorq-2", "mine.actorq", "learner.keda"],
        "args": ["--learner=learner.actorq:50051"],
    }
    given.append({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "a"}, "spec": fields})
    moved = by_kind(manifests.prepared(given, "demo", "lab", {}), "ScaledObject")["spec"]
    assert moved == {
        "triggers": [{"metadata": {"scalerAddress": "learner.lab:50051"}}],
        "dnsNames": ["learner", "learner.lab", "learner.lab.svc", "learner.lab.svc.cluster.local"],
        "others": fields["others"],
        "args": ["--learner=learner.lab:50051"],
    }


def test_what_selects_the_runs_namespace_by_name_follows_it() -> None:
    selected = {"matchLabels": {"kubernetes.io/metadata.name": "actorq"}}
    other = {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}
    policy = {"ingress": [{"from": [{"namespaceSelector": selected}, {"namespaceSelector": other}]}]}
    given: list[Object] = [
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": policy},
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": {"name": "m"},
            "spec": {"namespaceSelector": {"matchNames": ["actorq", "other"]}},
        },
    ]
    ready = manifests.prepared([*overlay(), *given], "demo", "lab", {})
    peers = by_kind(ready, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    names = [each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for each in peers]
    assert names == ["lab", "keda"]
    assert by_kind(ready, "ServiceMonitor")["spec"]["namespaceSelector"]["matchNames"] == ["lab", "other"]


def test_what_is_in_a_configuration_is_not_touched() -> None:
    given = overlay()
    by_kind(given, "ConfigMap")["data"] = {"config.yaml": "address: learner.actorq:50051"}
    assert by_kind(manifests.prepared(given, "demo", "lab", {}), "ConfigMap")["data"] == {
        "config.yaml": "address: learner.actorq:50051"
    }


def odd_shapes() -> list[Object]:
    given = overlay()
    learner = by_kind(given, "StatefulSet")
    learner["spec"]["volumeClaimTemplates"] = [3, {"metadata": None}]
    learner["metadata"]["labels"] = 3
    given[0]["spec"]["template"]["spec"]["containers"] = 5
    given.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "no-spec"}, "subjects": 1})
    monitor = {"namespaceSelector": {"matchNames": 1}}
    return [*given, {"apiVersion": "v1", "kind": "Odd", "metadata": {"name": "x"}, "spec": monitor}]


def test_what_is_of_no_use_is_left_to_the_api_server_to_refuse() -> None:
    ready = manifests.prepared(odd_shapes(), "demo", "lab", {})
    assert {each["metadata"]["labels"]["actorq/run"] for each in ready} == {"demo"}


def test_a_workload_that_is_none_is_said_so() -> None:
    learner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "learner"}, "spec": 5}
    with pytest.raises(UserError, match="is no overlay of a run: it has no StatefulSet"):
        manifests.parse(yaml.safe_dump_all([learner, *overlay()[:2]]), "run.yaml")


def test_a_run_lives_in_one_namespace() -> None:
    given = overlay()
    given[0]["metadata"]["namespace"], given[1]["metadata"]["namespace"] = "a", "b"
    with pytest.raises(UserError, match=r"spreads over namespaces a, b; a run lives in one"):
        manifests.namespace_of(given)


@pytest.mark.parametrize("image", ["actorq-actor:1", "actorq-actor", "x.example:5000/t/actorq-actor:1@sha256:00"])
def test_images_are_set_by_the_last_part_of_their_name(image: str) -> None:
    given = overlay()
    given[0]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    ready = manifests.prepared(given, "demo", "lab", manifests.parse_images([f"actorq-actor={IMAGE}"]))
    images = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["containers"][0]["image"]
        for each in ready
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    assert images == {"actor": IMAGE, "learner": "actorq-learner:1", "quantizer": "actorq-quantizer:1"}


def test_an_image_that_nothing_uses_is_a_slip() -> None:
    with pytest.raises(UserError, match=r"--set-image: no container of the overlay uses an image actor$"):
        manifests.prepared(overlay(), "demo", "lab", {"actor": IMAGE})
    with pytest.raises(UserError, match=r"--set-image: expected NAME=IMAGE, such as .*, got 'actor'"):
        manifests.parse_images(["actor"])


def test_a_rendered_file_is_read(tmp_path: Path) -> None:
    assert manifests.render(write(tmp_path / "run.yaml", overlay())) == overlay()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "expected objects with apiVersion, kind and metadata.name, got \\[1\\]"),
        ("", "is no overlay of a run: it has no StatefulSet with pods of app.kubernetes.io/component=learner"),
        (yaml.safe_dump_all(overlay()[1:]), "is no overlay of a run: it has no Deployment with pods of .*=actor$"),
    ],
    ids=["no YAML", "no objects", "nothing", "no actors"],
)
def test_what_is_no_run_is_refused(text: str, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        manifests.parse(text, "run.yaml")


def test_two_autoscalers_of_the_actors_are_one_line() -> None:
    target = {"name": "actor"}
    both: list[Object] = [
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "actor"},
            "spec": {"scaleTargetRef": {**target, "kind": "Deployment", "apiVersion": "apps/v1"}},
        },
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "actor"},
            "spec": {"scaleTargetRef": target},
        },
    ]
    for each in both:
        manifests.parse(yaml.safe_dump_all([*overlay(), each]), "demo.yaml")
    with pytest.raises(UserError, match=r"^overlay demo\.yaml has two autoscalers of its actors, components/hpa and"):
        manifests.parse(yaml.safe_dump_all([*overlay(), *both]), "demo.yaml")


def test_a_file_that_is_not_there_is_said_so() -> None:
    with pytest.raises(UserError, match=r"^overlay nowhere cannot be read \(No such file or directory\)$"):
        manifests.render("nowhere")


def test_a_folder_without_kustomization_is_no_overlay(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no kustomization\.yaml$"):
        manifests.render(str(tmp_path))


def test_kubectl_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: []")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="kubectl is needed to render an overlay and is not on the PATH"):
        manifests.render(str(tmp_path))


@pytest.mark.parametrize(
    "said",
    [
        "error: no such directory '../missing'",
        'E1120 14:35:03.129553   11686 run.go:72] "command failed" err="no such directory \'../missing\'"',
    ],
    ids=["plain", "logged"],
)
def test_what_kubectl_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    # The tests need no kubectl: this one ends as real ones do for a missing base.
    (tmp_path / "kustomization.yaml").write_text("resources: [../missing]")
    fake = tmp_path / "kubectl"
    fake.write_text(f"#!/bin/sh\necho warning >&2\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match=r"cannot be rendered: no such directory '\.\./missing'$"):
        manifests.render(str(tmp_path))


def test_a_run_is_called_as_its_overlay(tmp_path: Path) -> None:
    folder = tmp_path / "my_overlay"
    folder.mkdir()
    assert manifests.default_name(str(folder)) == "my-overlay"
    assert manifests.default_name("out/Run.2.yaml") == "run-2"
    assert manifests.default_name("-") == "run"
    with pytest.raises(UserError, match="--name: expected up to 63 of a-z, 0-9 and inner dashes, got 'a b'"):
        manifests.check_name("a b")
