"""A run is put into a namespace whole, alone, and taken out again without a trace but its volume."""

from collections.abc import Iterator

import pytest

from actorq.cluster import deployment, inventory
from actorq.cluster.connection import Cluster
from actorq.cluster.manifests import prepared
from actorq.errors import UserError
from tests.actorq.cluster.cluster_api import ClusterApi, Object, cluster_api
from tests.actorq.cluster.cluster_objects import overlay, ready_pod, workload

CLAIM: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data-learner-0", "labels": {"app.kubernetes.io/name": "actorq", "actorq/run": "demo"}},
}


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with cluster_api() as server:
        yield server


def ready(name: str = "demo") -> list[Object]:
    return prepared(overlay(), name, "lab", {})


def up(api: ClusterApi, manifests: list[Object] | None = None, name: str = "demo") -> list[str]:
    said: list[str] = []
    deployment.apply(api.cluster(), ready(name) if manifests is None else manifests, name, said.append)
    return said


def down(api: ClusterApi, delete_volume: bool = False) -> list[str]:
    said: list[str] = []
    deployment.remove(api.cluster(), delete_volume, said.append)
    return said


def up_and_down(api: ClusterApi) -> None:
    up(api)
    down(api)


def test_a_run_is_applied_and_listed_before_its_first_object(api: ClusterApi) -> None:
    up(api)
    assert api.names("deployments") == {"actor", "quantizer"}
    assert api.names("statefulsets") == {"learner"}
    assert api.changes[0] == ("apply", "actorq-run")
    made = inventory.read(api.cluster())
    assert made
    assert made.name == "demo"
    assert [each.name for each in made.objects] == [
        "run-config",
        "data-learner-0",
        "learner",
        "actor",
        "quantizer",
        "learner",
    ]


def test_down_leaves_nothing_but_the_volume(api: ClusterApi) -> None:
    up(api)
    api.add("v1", "persistentvolumeclaims", CLAIM)
    api.add("v1", "pods", ready_pod("learner-0", "learner"))
    api.add("v1", "configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "somebody-elses"}})
    assert down(api) == [
        "waiting for 1 pod to save and end",
        "volume data-learner-0 kept: `up` continues with it, `down --delete-volume` deletes it",
    ]
    assert {path.rpartition("/")[2] for path in api.objects} == {"data-learner-0", "somebody-elses"}


def test_the_volume_goes_when_told_even_after_the_run(api: ClusterApi) -> None:
    up(api)
    api.add("v1", "persistentvolumeclaims", CLAIM)
    down(api)
    assert down(api, delete_volume=True) == ["volume data-learner-0 deleted"]
    assert not api.objects


def test_down_says_how_many_pods_it_waits_for(api: ClusterApi) -> None:
    up(api)
    api.add("v1", "pods", ready_pod("actor-1", "actor"))
    api.add("v1", "pods", ready_pod("learner-0", "learner"))
    assert down(api)[0] == "waiting for 2 pods to save and end"
    with pytest.raises(UserError, match=r"namespace lab has no run of `actorq cluster up`"):
        down(api)


def test_a_volume_is_deleted_once_the_cluster_has_let_go_of_it(api: ClusterApi) -> None:
    up(api)
    api.add("v1", "persistentvolumeclaims", CLAIM)
    assert down(api, delete_volume=True) == ["volume data-learner-0 deleted"]
    assert not api.objects


@pytest.mark.parametrize("owner", [None, "other"])
def test_what_somebody_else_has_made_is_neither_changed_nor_deleted(api: ClusterApi, owner: str | None) -> None:
    labels = {"labels": {"actorq/run": owner}} if owner else {}
    service: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "learner", **labels}}
    api.add("v1", "services", service)
    fault = (
        r"^Service learner in namespace lab is not of run demo, which needs this name: choose another namespace "
        r"with -n, or delete it with `kubectl delete service learner -n lab`$"
    )
    with pytest.raises(UserError, match=fault):
        up(api)
    assert list(api.objects.values()) == [service]


def test_a_kind_that_the_cluster_has_no_more_keeps_nobody_from_down(api: ClusterApi) -> None:
    api.kinds["keda.sh/v1alpha1"] = [("ScaledObject", "scaledobjects", True)]
    scaled: Object = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "actor"}}
    up(api, prepared([*overlay(), scaled], "demo", "lab", {}))
    assert api.names("scaledobjects") == {"actor"}
    # Its definition goes, and its objects with it.
    del api.kinds["keda.sh/v1alpha1"]
    api.objects = {path: each for path, each in api.objects.items() if "scaledobjects" not in path}
    down(api, delete_volume=True)
    assert not api.objects


def test_an_object_that_left_the_overlay_leaves_the_cluster(api: ClusterApi) -> None:
    up(api)
    up(api, [each for each in ready() if each["kind"] != "Service"])
    assert api.names("services") == set()
    assert ("delete", "learner") in api.changes


def test_the_same_run_may_be_applied_again(api: ClusterApi) -> None:
    up(api)
    api.add("v1", "persistentvolumeclaims", CLAIM)
    up(api)
    assert api.names("deployments") == {"actor", "quantizer"}


def test_a_second_run_is_refused(api: ClusterApi) -> None:
    up(api)
    before = dict(api.objects)
    with pytest.raises(UserError, match=r"namespace lab has run 'demo' already: choose another namespace with -n, or"):
        up(api, name="other")
    assert api.objects == before


def test_a_run_that_was_applied_in_another_way_is_left_alone(api: ClusterApi) -> None:
    api.add("apps/v1", "statefulsets", workload("StatefulSet", "learner"))
    with pytest.raises(UserError, match=r"namespace lab has a run that `actorq cluster up` did not make"):
        up(api)


def test_the_volume_of_another_run_is_refused(api: ClusterApi) -> None:
    api.add("v1", "persistentvolumeclaims", CLAIM)
    with pytest.raises(UserError, match=r"volume data-learner-0 in namespace lab belongs to run 'demo': go on with"):
        up(api, name="other")
    assert api.names("configmaps") == set()


@pytest.mark.parametrize(
    ("verb", "plural", "group"), [("patch", "deployments", ".apps"), ("create", "configmaps", ""), ("list", "pods", "")]
)
def test_without_a_permission_nothing_is_left_half_made(api: ClusterApi, verb: str, plural: str, group: str) -> None:
    api.forbidden.add((verb, plural))
    fault = f"no permission: ada may not {verb} {plural}{group} in namespace lab"
    with pytest.raises(UserError, match=fault):
        up_and_down(api)
    api.forbidden.clear()
    if api.objects:
        down(api, delete_volume=True)
    assert not api.objects


def test_a_kind_that_the_cluster_lacks_is_named_before_anything_is_made(api: ClusterApi) -> None:
    monitor = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "learner"}}
    with pytest.raises(UserError, match=r"the cluster has no kind ServiceMonitor \(monitoring\.coreos\.com/v1\)"):
        up(api, [*ready(), monitor])
    assert not api.objects


def test_a_namespace_that_is_not_there_is_named(api: ClusterApi) -> None:
    with pytest.raises(UserError, match=r"namespace elsewhere does not exist: make it with `kubectl create"):
        deployment.apply(api.cluster("elsewhere"), ready(), "demo", print)


PRIORITY: Object = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "actorq-learner"},
    "value": 1000,
}


def test_what_runs_share_is_made_once_and_stays(api: ClusterApi) -> None:
    said = up(api, [PRIORITY, *ready()])
    assert said == ["PriorityClass actorq-learner created; other runs may share it, so `down` keeps it"]
    down(api)
    assert api.names("priorityclasses") == {"actorq-learner"}
    assert up(api, [PRIORITY, *ready()]) == []


def test_who_may_not_see_what_runs_share_is_not_stopped(api: ClusterApi) -> None:
    api.forbidden.add(("get", "priorityclasses"))
    (said,) = up(api, [PRIORITY, *ready()])
    assert said.startswith("PriorityClass actorq-learner is assumed to exist (no permission: ada may not get")
    assert api.names("deployments") == {"actor", "quantizer"}


def test_a_cluster_that_is_not_there_is_said_so() -> None:
    with cluster_api() as server:
        cluster: Cluster = server.cluster()
    with pytest.raises(UserError, match=r"^no cluster: http://127\.0\.0\.1:\d+ cannot be reached \(.*refused\); check"):
        cluster.list("v1", "Pod")
