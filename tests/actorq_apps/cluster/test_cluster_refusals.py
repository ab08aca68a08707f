"""What an API server refuses becomes a line that says what to do."""

import json

import pytest
from kubernetes.client.exceptions import ApiException

from actorq.errors import ActorQError, ConflictError, NotFoundError, UserError
from actorq_apps.cluster.answers import QuotaError, explained


def refused(status: int, message: str) -> ActorQError:
    error = ApiException(status=status, reason="Reason")
    error.body = json.dumps({"message": message})
    return explained(error, "apply Service learner")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            'deployments.apps "actor" is forbidden: User "ada" cannot patch resource "deployments" in API group "apps" '
            'in the namespace "lab"',
            "no permission: ada may not patch deployments.apps in namespace lab; ask for a Role with the verb patch on "
            "deployments.apps",
        ),
        (
            'pods is forbidden: User "ada" cannot list resource "pods" in API group "" in the namespace "lab"',
            "no permission: ada may not list pods in namespace lab; ask for a Role with the verb list on pods",
        ),
        (
            'namespaces is forbidden: User "system:serviceaccount:lab:bot" cannot create resource "namespaces" in API '
            'group "" at the cluster scope',
            "no permission: system:serviceaccount:lab:bot may not create namespaces in the cluster; ask for a "
            "ClusterRole with the verb create on namespaces",
        ),
    ],
    ids=["group", "core", "cluster scope"],
)
def test_a_missing_permission_is_named(message: str, line: str) -> None:
    error = refused(403, message)
    assert isinstance(error, UserError)
    assert str(error) == line


def test_a_refused_port_forward_names_its_permission_too() -> None:
    # A WebSocket that is refused leaves no body, but all of the answer in its reason.
    body = (
        'Handshake status 403 Forbidden -+-+- {} -+-+- b\'{"message":"forbidden: User \\"ada\\" '
        'cannot get resource \\"pods/portforward\\" in API group \\"\\" in the namespace \\"lab\\""}\''
    )
    error = explained(ApiException(status=0, reason=body), "forward port 50051")
    assert str(error) == (
        "no permission: ada may not get pods/portforward in namespace lab; ask for a Role with the verb get on "
        "pods/portforward"
    )


def test_other_refusals_keep_the_servers_words() -> None:
    quota = refused(403, 'pods "x" is forbidden: exceeded quota')
    assert str(quota) == 'the cluster refuses to apply Service learner: pods "x" is forbidden: exceeded quota'
    assert isinstance(quota, QuotaError)
    assert isinstance(refused(403, 'pods "x" is forbidden: status unknown for quota: lab'), QuotaError)
    assert not isinstance(refused(403, "denied by a webhook"), QuotaError)
    assert isinstance(refused(404, "not there"), NotFoundError)
    assert isinstance(refused(409, "it exists"), ConflictError)
    assert str(refused(422, "spec.ports:\n  Required")) == (
        "the cluster refuses to apply Service learner: spec.ports: Required"
    )
    assert str(refused(500, "broken")) == "cannot apply Service learner: broken"
    assert str(explained(ApiException(status=503, reason="Unavailable"), "look")) == "cannot look: Unavailable"


def test_unknown_credentials_are_said_so() -> None:
    assert "the cluster does not accept your credentials" in str(refused(401, "Unauthorized"))


def test_a_missing_namespace_is_said_so() -> None:
    assert str(refused(404, 'namespaces "lab" not found')).startswith("namespace lab does not exist: make it with")


def test_a_volume_that_cannot_grow_is_said_so() -> None:
    said = (
        'persistentvolumeclaims "policies" is forbidden: only dynamically provisioned pvc can be resized and the '
        "storageclass that provisions the pvc must support resize"
    )
    assert str(refused(403, said)).startswith("volume policies cannot grow: its StorageClass does not allow that")


def test_a_statefulset_that_cannot_change_comes_with_a_way_out() -> None:
    said = (
        'StatefulSet.apps "learner" is invalid: spec: Forbidden: updates to statefulset spec for fields other than '
        "'replicas', 'template' and 'updateStrategy' are forbidden"
    )
    assert str(refused(422, said)).endswith(
        "are forbidden; set them back, or `kubectl delete statefulset NAME --cascade=orphan` and apply again: pods stay"
    )
