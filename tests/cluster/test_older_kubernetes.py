"""The overlays of these tests change only the features that an older cluster lacks."""

import shutil
from pathlib import Path

import pytest

from actorq_apps.cluster.manifests import default_name, render
from actorq_apps.cluster.objects import Object
from actorq_apps.operator.render import objects as objects_of_run
from tests.actorq_apps.operator.training_runs import SPECS, training_run
from tests.cluster.older_kubernetes import HERE, K8S, Offered, Overlays, adapted, manifests

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
OLD = Offered("policy/v1beta1", eviction_policies=False, grpc_probes=False)

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="overlays are rendered with kubectl")


def probes(objects: list[Object]) -> list[Object]:
    pods = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
    return [pod["containers"][0][probe] for pod in pods for probe in PROBES]


def budgets(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] == "PodDisruptionBudget"]


@pytest.mark.parametrize("name", ["overlay", "endless", "mtls"])
def test_kubernetes_1_20_gets_only_supported_features(name: str) -> None:
    objects = adapted(render(str(HERE / name)), OLD)
    assert {each["apiVersion"] for each in budgets(objects)} == {"policy/v1beta1"}
    assert not any("unhealthyPodEvictionPolicy" in each["spec"] for each in budgets(objects))
    assert probes(objects)
    for probe in probes(objects):
        assert "grpc" not in probe
        assert len({"tcpSocket", "httpGet"} & set(probe)) == 1


def test_a_cluster_with_newer_budgets_keeps_them() -> None:
    objects = adapted(render(str(HERE / "overlay")), Offered(eviction_policies=False, grpc_probes=False))
    assert {each["apiVersion"] for each in budgets(objects)} == {"policy/v1"}
    assert not any("unhealthyPodEvictionPolicy" in each["spec"] for each in budgets(objects))
    assert all("tcpSocket" in probe for probe in probes(objects))


def test_probes_keep_their_times() -> None:
    before, after = render(str(HERE / "overlay")), adapted(render(str(HERE / "overlay")), OLD)
    assert [each["periodSeconds"] for each in probes(before)] == [each["periodSeconds"] for each in probes(after)]
    assert all("grpc" in probe for probe in probes(before))


def test_a_newer_cluster_gets_the_folder_itself(tmp_path: Path) -> None:
    assert Overlays(Offered(), tmp_path).path("endless") == str(HERE / "endless")


def test_an_older_cluster_gets_a_file_of_the_same_name(tmp_path: Path) -> None:
    path = Overlays(OLD, tmp_path).path("endless")
    assert default_name(path) == default_name(str(HERE / "endless"))
    assert adapted(render(str(HERE / "endless")), OLD) == render(path)


@pytest.mark.parametrize("name", SPECS)
def test_the_operator_makes_objects_that_an_older_cluster_supports(name: str, tmp_path: Path) -> None:
    run = training_run(**SPECS[name])
    made = objects_of_run(run, manifests=manifests(OLD, tmp_path))
    assert {each["apiVersion"] for each in budgets(made)} == {"policy/v1beta1"}
    assert made == adapted(objects_of_run(run), OLD)
    assert manifests(Offered(), tmp_path) == K8S
