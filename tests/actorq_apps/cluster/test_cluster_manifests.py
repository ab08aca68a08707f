"""An overlay becomes objects that can be applied. A wrong overlay gives one line with the reason."""

import os
from pathlib import Path

import pytest
import yaml

from actorq.errors import UserError
from actorq_apps.cluster import manifests
from actorq_apps.operator.naming import named
from tests.actorq_apps.cluster.cluster_objects import Object, overlay


def by_kind(found: list[Object], kind: str) -> Object:
    return next(each for each in found if each["kind"] == kind)


def write(path: Path, documents: list[Object]) -> str:
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


def test_every_object_has_the_name_of_the_run() -> None:
    ready = manifests.prepared(overlay(), "demo", "lab")
    assert {each["metadata"]["labels"]["actorq/run"] for each in ready} == {"demo"}
    pods = by_kind(ready, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert "actorq/run" not in pods, "a selector of an existing run would no longer fit"


def test_workloads_come_after_the_objects_that_they_need() -> None:
    kinds = [each["kind"] for each in manifests.prepared(overlay(), "demo", "lab")]
    assert kinds == ["PersistentVolumeClaim", "Service", "ConfigMap", "Deployment", "Deployment", "StatefulSet"]


def test_does_not_modify_the_overlays_objects() -> None:
    given = overlay()
    manifests.prepared(given, "demo", "lab")
    assert given == overlay()


def test_does_not_change_the_text_of_a_configuration() -> None:
    given = overlay()
    by_kind(given, "ConfigMap")["data"] = {"config.yaml": "address: learner.actorq:50051"}
    assert by_kind(manifests.prepared(given, "demo", "lab"), "ConfigMap")["data"] == {
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


@pytest.mark.parametrize("given", [odd_shapes(), named(odd_shapes(), "demo", "demo")], ids=["as it is", "named"])
def test_fields_of_a_wrong_type_are_left_to_the_api_server_to_refuse(given: list[Object]) -> None:
    ready = manifests.prepared(given, "demo", "lab")
    assert {each["metadata"]["labels"]["actorq/run"] for each in ready} == {"demo"}


def test_an_overlay_without_a_valid_statefulset_is_refused() -> None:
    learner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "learner"}, "spec": 5}
    with pytest.raises(UserError, match=r"run\.yaml .*StatefulSet"):
        manifests.parse(yaml.safe_dump_all([learner, *overlay()[:2]]), "run.yaml")


@pytest.mark.parametrize(
    ("written", "given", "namespace"),
    [((), None, None), ((), "lab", "lab"), (("lab",), None, "lab"), (("lab",), "lab", "lab")],
)
def test_a_run_lives_in_the_namespace_of_its_overlay_or_of_the_flag(
    written: tuple[str, ...], given: str | None, namespace: str | None
) -> None:
    assert manifests.namespace_of(in_namespaces(*written), given) == namespace


@pytest.mark.parametrize(("written", "given"), [(("a", "b"), None), (("a",), "b")])
def test_a_run_lives_in_one_namespace(written: tuple[str, ...], given: str | None) -> None:
    with pytest.raises(UserError, match=r"namespace.* a, b\b"):
        manifests.namespace_of(in_namespaces(*written), given)


def in_namespaces(*names: str) -> list[Object]:
    """The smallest run, with its first objects in these namespaces."""
    given = overlay()
    for each, name in zip(given, names, strict=False):
        each["metadata"]["namespace"] = name
    return given


def test_the_learners_volume_is_made_with_the_name_of_the_run() -> None:
    given = overlay()
    (template,) = by_kind(given, "StatefulSet")["spec"]["volumeClaimTemplates"]
    template["metadata"]["labels"] = {"app.kubernetes.io/name": "actorq"}
    template["spec"] = {"resources": {"requests": {"storage": "10Gi"}}}
    ready = manifests.prepared(given, "demo", "lab")
    volume = by_kind(ready, "PersistentVolumeClaim")
    assert volume["spec"] == template["spec"]
    assert volume["metadata"] == {
        "name": "data-learner-0",
        "labels": {
            "app.kubernetes.io/name": "actorq",
            "app.kubernetes.io/component": "learner",
            "actorq/run": "demo",
        },
    }
    # Kubernetes never changes the template. With another label, `kubectl apply -k` of the overlay would be refused.
    assert by_kind(ready, "StatefulSet")["spec"] == by_kind(given, "StatefulSet")["spec"]


def test_a_rendered_file_is_read(tmp_path: Path) -> None:
    assert manifests.render(write(tmp_path / "run.yaml", overlay())) == overlay()


def test_an_overlay_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"overlay nowhere .*No such file"):
        manifests.render("nowhere")


def test_reports_a_missing_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: []")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"kubectl .*PATH"):
        manifests.render(str(tmp_path))


@pytest.mark.parametrize(
    "said",
    [
        "error: no such directory '../missing'",
        'E1120 14:35:03.129553   11686 run.go:72] "command failed" err="no such directory \'../missing\'"',
    ],
    ids=["plain", "logged"],
)
def test_the_error_of_kubectl_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    # The tests need no kubectl: this fake ends like a real kubectl with a missing base.
    (tmp_path / "kustomization.yaml").write_text("resources: [../missing]")
    fake = tmp_path / "kubectl"
    fake.write_text(f"#!/bin/sh\necho warning >&2\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match=rf"{tmp_path}.*: no such directory '\.\./missing'$"):
        manifests.render(str(tmp_path))


def test_a_run_has_the_name_of_its_overlay(tmp_path: Path) -> None:
    folder = tmp_path / "my_overlay"
    folder.mkdir()
    assert manifests.default_name(str(folder)) == "my-overlay"
    assert manifests.default_name("out/Run.2.yaml") == "run-2"
    assert manifests.default_name("-") == "run"
