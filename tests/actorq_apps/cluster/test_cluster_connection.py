"""A hanging API server delays a request only for a limited time, and a lost connection keeps the known kinds."""

from collections.abc import Callable, Iterator

import pytest

from actorq_apps.cluster.connection import Cluster, UnreachableError
from actorq_apps.cluster.logs import last_log_line
from tests.actorq_apps.cluster.cluster_api import ClusterApi, cluster_api
from tests.actorq_apps.cluster.hanging import hanging

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "learner-0"}}
LIMIT_BYTES = 65_536
DEADLINE_S = 30.0


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with cluster_api() as server:
        server.add("apps/v1", "statefulsets", {**POD, "kind": "StatefulSet", "spec": {"replicas": 1}})
        yield server


def impatient(api: ClusterApi) -> Cluster:
    """A cluster that has looked up the kinds before the server hangs."""
    cluster = api.cluster()
    for api_version, kind in (("v1", "Pod"), ("apps/v1", "StatefulSet")):
        assert cluster.has_kind(api_version, kind)
    return cluster.at("lab", timeout_s=0.1)


requests_of_all_kinds = pytest.mark.parametrize(
    "request_of",
    [
        lambda cluster: cluster.get("v1", "Pod", "learner-0"),
        lambda cluster: cluster.list("v1", "Pod"),
        lambda cluster: cluster.patch("v1", "Pod", "learner-0", {}),
        lambda cluster: cluster.apply(POD),
        lambda cluster: cluster.delete("v1", "Pod", "learner-0"),
        lambda cluster: cluster.scale("apps/v1", "StatefulSet", "learner-0", 0),
    ],
    ids=["get", "list", "patch", "apply", "delete", "scale"],
)


@requests_of_all_kinds
def test_a_request_to_a_hanging_server_is_sent_once_and_ends(
    api: ClusterApi, request_of: Callable[[Cluster], object]
) -> None:
    cluster = impatient(api)
    with hanging(api, lambda verb, kind: True) as requests:
        with pytest.raises(UnreachableError, match=f"no cluster: .*{api.server_address[1]}.*timed out"):
            request_of(cluster)
        # The server may notice later than the client's timeout.
        assert requests.begun.wait(DEADLINE_S)
        assert (requests.count, requests.outlasted) == (1, False)


@requests_of_all_kinds
def test_an_answer_that_breaks_off_is_a_lost_connection(
    api: ClusterApi, request_of: Callable[[Cluster], object]
) -> None:
    api.add("v1", "pods", POD)
    cluster = impatient(api).at("lab", timeout_s=DEADLINE_S)
    api.cut_bytes = 10
    with pytest.raises(UnreachableError, match=f"no cluster: .*{api.server_address[1]}.*IncompleteRead"):
        request_of(cluster)


def test_the_last_line_of_a_log_that_does_not_come_is_empty(api: ClusterApi) -> None:
    api.logs["learner-0"] = "error: a\n"
    cluster = impatient(api)
    with hanging(api, lambda verb, kind: kind == "Pod") as requests:
        assert last_log_line(cluster, "learner-0", "learner") == ""
        assert requests.begun.wait(DEADLINE_S)
        assert (requests.count, requests.outlasted) == (1, False)
    assert last_log_line(api.cluster().at("lab"), "learner-0", "learner") == "a"


def test_no_more_of_a_log_is_read_than_the_limit(api: ClusterApi) -> None:
    api.logs["learner-0"] = "x" * (LIMIT_BYTES + 1)
    assert len(last_log_line(api.cluster(), "learner-0", "learner")) == LIMIT_BYTES


def test_a_kind_that_was_missing_is_found_once_it_is_there(api: ClusterApi) -> None:
    cluster = api.cluster()
    leases = api.kinds.pop("coordination.k8s.io/v1")
    assert not cluster.has_kind("coordination.k8s.io/v1", "Lease")
    api.kinds["coordination.k8s.io/v1"] = leases
    assert cluster.has_kind("coordination.k8s.io/v1", "Lease")


def test_kinds_are_known_to_all_namespaces_of_a_cluster(api: ClusterApi) -> None:
    cluster = api.cluster()
    other = cluster.at("elsewhere")
    assert other.has_kind("v1", "Pod")
    api.kinds.clear()
    assert cluster.has_kind("v1", "Pod")
