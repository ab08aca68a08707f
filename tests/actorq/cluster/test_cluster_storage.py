"""A run's volumes carry its name, and what Kubernetes cannot change about them is one line."""

from collections.abc import Iterator

import pytest

from actorq.cluster import deployment, manifests
from actorq.errors import UserError
from tests.actorq.cluster.cluster_api import ClusterApi, cluster_api
from tests.actorq.cluster.cluster_objects import Object, overlay


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with cluster_api() as server:
        yield server


def sized(learner: str = "10Gi", policies: str = "2Gi") -> list[Object]:
    """The smallest run, with volumes of these sizes."""
    objects = overlay()
    for each in objects:
        if each["kind"] == "StatefulSet":
            metadata = {"name": "data", "labels": {"app.kubernetes.io/name": "actorq"}}
            each["spec"]["volumeClaimTemplates"] = [{"metadata": metadata, "spec": claim(learner)}]
    volume = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "policies"}}
    return [*objects, {**volume, "spec": claim(policies)}]


def claim(size: str) -> Object:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}


def up(api: ClusterApi, objects: list[Object]) -> None:
    deployment.apply(api.cluster(), manifests.prepared(objects, "demo", "lab", {}), "demo", print)


def of(objects: list[Object], kind: str, name: str) -> Object:
    return next(each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)


def test_the_learners_volume_is_made_with_the_name_of_the_run() -> None:
    ready = manifests.prepared(sized(), "demo", "lab", {})
    volume = of(ready, "PersistentVolumeClaim", "data-learner-0")
    assert volume["spec"] == claim("10Gi")
    assert volume["metadata"]["labels"] == {
        "app.kubernetes.io/name": "actorq",
        "app.kubernetes.io/component": "learner",
        "actorq/run": "demo",
    }


def test_the_volumes_template_stays_that_of_the_overlay() -> None:
    # Kubernetes never changes it: with a label more, `kubectl apply -k` of the same overlay would be refused.
    ready = manifests.prepared(sized(), "demo", "lab", {})
    assert of(ready, "StatefulSet", "learner")["spec"] == of(sized(), "StatefulSet", "learner")["spec"]


def test_the_volume_is_where_the_run_is() -> None:
    objects = sized()
    of(objects, "StatefulSet", "learner")["metadata"]["namespace"] = "original"
    volume = of(manifests.prepared(objects, "demo", "lab", {}), "PersistentVolumeClaim", "data-learner-0")
    assert volume["metadata"]["namespace"] == "lab"


def test_the_same_run_goes_on_with_its_volumes(api: ClusterApi) -> None:
    up(api, sized())
    up(api, sized())
    assert api.names("persistentvolumeclaims") == {"data-learner-0", "policies"}


def test_a_run_of_an_earlier_version_tells_how_its_template_is_replaced(api: ClusterApi) -> None:
    up(api, sized())
    learner = of(list(api.objects.values()), "StatefulSet", "learner")
    learner["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"]["actorq/run"] = "demo"
    fault = (
        r"^StatefulSet learner was made by an earlier version: the label actorq/run in its volume's template keeps "
        r"`kubectl apply -k` from working; run `kubectl delete statefulset learner --cascade=orphan -n lab` and `up` "
    )
    with pytest.raises(UserError, match=fault):
        up(api, sized())
    api.objects = {path: each for path, each in api.objects.items() if "statefulsets" not in path}
    up(api, sized())
    assert api.names("statefulsets") == {"learner"}


@pytest.mark.parametrize("size", ["20Gi", "11Gi"])
def test_a_larger_volume_of_the_learner_tells_how_it_grows(api: ClusterApi, size: str) -> None:
    up(api, sized())
    fault = (
        rf"^volume data of StatefulSet learner has 10Gi, the overlay says {size}: a StatefulSet keeps the size; set "
        r"10Gi in the overlay, or run `kubectl delete statefulset learner --cascade=orphan -n lab` and `up` again; the"
    )
    before = dict(api.objects)
    with pytest.raises(UserError, match=fault):
        up(api, sized(size))
    assert api.objects == before


@pytest.mark.parametrize(
    ("learner", "policies", "volume"),
    [("1Gi", "2Gi", "data-learner-0 has 10Gi"), ("10Gi", "512Mi", "policies has 2Gi")],
)
def test_a_smaller_volume_is_refused(api: ClusterApi, learner: str, policies: str, volume: str) -> None:
    up(api, sized())
    with pytest.raises(UserError, match=rf"^volume {volume}, the overlay says \w+: a volume cannot shrink; set "):
        up(api, sized(learner, policies))


def test_a_size_may_be_written_in_another_way(api: ClusterApi) -> None:
    up(api, sized("1Gi"))
    up(api, sized("1024Mi"))


def test_a_larger_volume_without_a_template_is_for_the_cluster_to_grow(api: ClusterApi) -> None:
    up(api, sized())
    up(api, sized(policies="4Gi"))
    assert of(list(api.objects.values()), "PersistentVolumeClaim", "policies")["spec"] == claim("4Gi")
