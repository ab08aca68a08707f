"""A run is applied completely, shares a namespace only under its own name, and is deleted completely."""

from collections.abc import Iterator

import pytest

from actorq.errors import UserError
from actorq_apps.cluster import deployment
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.manifests import prepared
from actorq_apps.operator.naming import named
from tests.actorq_apps.cluster.cluster_api import ClusterApi, Object, cluster_api
from tests.actorq_apps.cluster.cluster_objects import evicted_pod, overlay, owned, ready_pod, workload


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with cluster_api() as server:
        yield server


def ready(name: str = "demo") -> list[Object]:
    return prepared(overlay(), name, "lab")


def up(api: ClusterApi, manifests: list[Object] | None = None, name: str = "demo") -> None:
    deployment.apply(api.cluster(), ready(name) if manifests is None else manifests, name, lambda: False)


def down(api: ClusterApi, delete_volume: bool = False) -> list[str]:
    said: list[str] = []
    assert deployment.delete(api.cluster(), delete_volume, said.append) == "demo"
    return said


def test_a_run_is_applied_with_its_volume(api: ClusterApi) -> None:
    up(api)
    assert api.names("deployments") == {"actor", "quantizer"}
    assert api.names("statefulsets") == {"learner"}
    assert api.names("persistentvolumeclaims") == {"data-learner-0"}


def test_down_deletes_everything_except_the_volume(api: ClusterApi) -> None:
    up(api)
    api.add("v1", "pods", ready_pod("actor-1", "actor"))
    api.add("v1", "pods", ready_pod("learner-0", "learner"))
    api.add("v1", "pods", evicted_pod("actor-0", "actor"))
    api.add("v1", "configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "somebody-elses"}})
    (told,) = down(api)
    assert "pods (2)" in told
    assert {path.rpartition("/")[2] for path in api.objects} == {"data-learner-0", "somebody-elses"}
    with pytest.raises(UserError, match=r"namespace lab .*`actorq cluster up`"):
        down(api)


def test_down_deletes_the_volume_on_request_even_after_the_run(api: ClusterApi) -> None:
    up(api)
    down(api)
    # The volume disappears only when the cluster releases it.
    (told,) = down(api, delete_volume=True)
    assert "volumes (1)" in told
    assert not api.objects


@pytest.mark.parametrize("labels", [{}, {"actorq/run": "other"}])
def test_an_object_of_somebody_else_is_neither_changed_nor_deleted(api: ClusterApi, labels: Object) -> None:
    service: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "learner", "labels": labels}}
    api.add("v1", "services", service)
    with pytest.raises(UserError, match=r"Service learner.* lab .* demo.*`kubectl delete service learner -n lab`"):
        up(api)
    assert list(api.objects.values()) == [service]


def test_an_object_of_a_training_run_of_the_same_name_stays(api: ClusterApi) -> None:
    up(api)
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "labels": {"actorq/run": "demo"}},
    }
    api.add("v1", "services", owned(service, "TrainingRun", "demo"))
    up(api)
    volume: Object = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-demo-learner-0"}}
    volume["metadata"] |= {"labels": {"actorq/run": "demo"}, "annotations": {"actorq/digest": "of the operator"}}
    api.add("v1", "persistentvolumeclaims", volume)
    pod = ready_pod("demo-learner-0", "learner")
    pod["metadata"]["labels"]["actorq/run"] = "demo"
    api.add("v1", "pods", pod)
    (told,) = down(api, delete_volume=True)
    assert "volumes (1)" in told
    assert api.names("services") == {"s"}
    assert api.names("persistentvolumeclaims") == {"data-demo-learner-0"}


def test_down_works_when_the_cluster_lost_a_kind(api: ClusterApi) -> None:
    api.kinds["keda.sh/v1alpha1"] = [("ScaledObject", "scaledobjects", True)]
    scaled: Object = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "actor"}}
    up(api, prepared([*overlay(), scaled], "demo", "lab"))
    assert api.names("scaledobjects") == {"actor"}
    # Its definition is deleted, and with it its objects.
    del api.kinds["keda.sh/v1alpha1"]
    api.objects = {path: each for path, each in api.objects.items() if "scaledobjects" not in path}
    down(api, delete_volume=True)
    assert not api.objects


def test_deletes_an_object_that_was_removed_from_the_overlay(api: ClusterApi) -> None:
    up(api)
    up(api, [each for each in ready() if each["kind"] not in ("Service", "PersistentVolumeClaim")])
    assert api.names("services") == set()
    assert api.names("persistentvolumeclaims") == {"data-learner-0"}


def test_the_same_run_may_be_applied_again(api: ClusterApi) -> None:
    up(api)
    before = set(api.objects)
    up(api)
    assert set(api.objects) == before


def test_a_second_run_is_refused(api: ClusterApi) -> None:
    up(api)
    before = dict(api.objects)
    with pytest.raises(UserError, match=r"namespace lab .*StatefulSet learner\b.* -n"):
        up(api, name="other")
    assert api.objects == before


def test_down_ignores_a_run_that_was_applied_in_another_way(api: ClusterApi) -> None:
    api.add("apps/v1", "statefulsets", workload("StatefulSet", "learner"))
    with pytest.raises(UserError, match=r"namespace lab .*StatefulSet learner\b"):
        up(api)


def test_runs_with_different_names_share_a_namespace(api: ClusterApi) -> None:
    for name in ("demo", "wide"):
        up(api, prepared(named(overlay(), name, name), name, "lab"), name)
    assert api.names("deployments") == {"demo-actor", "demo-quantizer", "wide-actor", "wide-quantizer"}
    before = dict(api.objects)
    with pytest.raises(UserError, match=r"namespace lab .*StatefulSet \w+-learner\b"):
        up(api, name="third")
    with pytest.raises(UserError, match=r"namespace lab .*demo, wide.*--run$"):
        down(api)
    assert api.objects == before


def test_the_volume_of_another_run_is_refused(api: ClusterApi) -> None:
    up(api)
    down(api)
    with pytest.raises(UserError, match=r"PersistentVolumeClaim data-learner-0 .*lab .* other"):
        up(api, name="other")
    assert api.names("configmaps") == set()


def test_the_volume_of_a_training_run_is_refused_with_its_name(api: ClusterApi) -> None:
    objects = prepared(named(overlay(), "demo", "demo"), "demo", "lab")
    volume = next(each for each in objects if each["kind"] == "PersistentVolumeClaim")
    metadata = {**volume["metadata"], "annotations": {"actorq/digest": "of the operator"}}
    api.add("v1", "persistentvolumeclaims", {**volume, "metadata": metadata})
    with pytest.raises(UserError, match=r"PersistentVolumeClaim data-demo-learner-0 .*lab .*TrainingRun demo"):
        up(api, objects)
    assert api.names("configmaps") == set()


@pytest.mark.parametrize(
    ("verb", "plural", "group"), [("patch", "deployments", ".apps"), ("list", "configmaps", ""), ("list", "pods", "")]
)
def test_applies_nothing_without_a_permission(api: ClusterApi, verb: str, plural: str, group: str) -> None:
    api.forbidden.add((verb, plural))

    def up_and_down() -> None:
        up(api)
        down(api)

    with pytest.raises(UserError, match=f"ada .*{verb} {plural}{group} .* lab"):
        up_and_down()
    api.forbidden.clear()
    if api.objects:
        down(api, delete_volume=True)
    assert not api.objects


def test_a_kind_that_the_cluster_lacks_is_named_before_anything_is_made(api: ClusterApi) -> None:
    monitor = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "learner"}}
    with pytest.raises(UserError, match=r"ServiceMonitor.*monitoring\.coreos\.com/v1"):
        up(api, [*ready(), monitor])
    assert not api.objects


def test_names_a_missing_namespace(api: ClusterApi) -> None:
    with pytest.raises(UserError, match=r"namespace elsewhere .*`kubectl create"):
        deployment.apply(api.cluster("elsewhere"), ready(), "demo", lambda: False)


def test_an_object_that_runs_share_stays(api: ClusterApi) -> None:
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "actorq-learner"}}
    up(api, [priority, *ready()])
    down(api)
    assert api.names("priorityclasses") == {"actorq-learner"}


def test_names_the_address_of_an_unreachable_cluster() -> None:
    with cluster_api() as server:
        cluster: Cluster = server.cluster()
    with pytest.raises(UserError, match=f"no cluster: http://127.0.0.1:{server.server_address[1]} .*refused"):
        cluster.list("v1", "Pod")
