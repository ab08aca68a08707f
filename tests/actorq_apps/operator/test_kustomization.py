"""The operator builds the same objects from k8s/ as kubectl."""

import shutil
from pathlib import Path

import pytest
import yaml

from actorq.errors import UserError
from actorq_apps.operator.kustomization import build
from tests.k8s.rendered_manifests import K8S, Object, render

# Each component that the operator uses, in the orders that it uses.
CHOICES = [
    ("plaintext",),
    ("relays", "plaintext", "network-policies", "relays/network-policies"),
    ("relays", "mtls", "relays/mtls", "gpu-learner", "spot-actors"),
    ("plaintext", "external"),
    ("relays", "mtls", "external", "external/mtls", "relays/mtls", "network-policies"),
]


def ordered(objects: tuple[Object, ...] | list[Object]) -> list[Object]:
    return sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"]))


@pytest.mark.parametrize("components", CHOICES, ids=" ".join)
def test_the_operator_builds_the_same_objects_as_kubectl(components: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "run").mkdir()
    tree = {"resources": ["../k8s/base"], "components": [f"../k8s/components/{name}" for name in components]}
    (tmp_path / "run" / "kustomization.yaml").write_text(yaml.safe_dump(tree))
    ours = build(K8S / "base", [K8S / "components" / name for name in components])
    assert ordered(ours) == ordered(render(tmp_path / "run"))


def test_building_twice_gives_objects_that_share_nothing() -> None:
    first = build(K8S / "base")
    first[0]["metadata"]["name"] = "changed"
    assert "changed" not in str(build(K8S / "base"))


def base(folder: Path, **more: object) -> Path:
    """A base with one Service and a kustomization."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "learner"}, "spec": {"a": 1}}
    (folder / "service.yaml").write_text(yaml.safe_dump(service))
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["service.yaml"], **more}))
    return folder


def test_a_null_in_a_patch_removes_a_field(tmp_path: Path) -> None:
    patch = "{kind: Service, metadata: {name: learner}, spec: {a: null, b: 2}}"
    (made,) = build(base(tmp_path, patches=[{"patch": patch}]))
    assert made["spec"] == {"b": 2}


def test_a_patch_deletes_an_object(tmp_path: Path) -> None:
    patch = "{$patch: delete, apiVersion: v1, kind: Service, metadata: {name: learner}}"
    assert build(base(tmp_path, patches=[{"target": {"kind": "Service", "name": "learner"}, "patch": patch}])) == []


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ({"namePrefix": "x-"}, "namePrefix"),
        ({"resources": ["missing.yaml"]}, r"missing\.yaml .*No such file"),
        ({"patches": [{"path": "broken.yaml"}]}, r"broken\.yaml .*YAML"),
        ({"patches": [{"patch": "{kind: Service, metadata: {name: x}}"}]}, "no object"),
        (
            {"patches": [{"target": {"kind": "Service"}, "patch": "[{op: test, path: /spec/a, value: 2}]"}]},
            r"patch of \{'kind': 'Service'\}",
        ),
        (
            {"patches": [{"target": {"kind": "Service"}, "patch": "[{op: remove, path: /spec/b}]"}]},
            r"patch of \{'kind': 'Service'\}",
        ),
    ],
)
def test_reports_manifests_that_cannot_be_built_in_one_line(more: dict[str, object], fact: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(UserError, match=fact) as caught:
        build(base(tmp_path, **more))
    assert "\n" not in str(caught.value)
