"""A refusal of an API server becomes one line with the remedy."""

import json
import re

import pytest
from kubernetes.client.exceptions import ApiException

from actorq.errors import ActorQError, ConflictError, NotFoundError, UserError
from actorq_apps.cluster.answers import QuotaError, explained


def refused(status: int, message: str) -> ActorQError:
    error = ApiException(status=status, reason="Reason")
    error.body = json.dumps({"message": message})
    return explained(error, "apply Service learner")


@pytest.mark.parametrize(
    ("message", "fact"),
    [
        (
            'deployments.apps "actor" is forbidden: User "ada" cannot patch resource "deployments" in API group "apps" '
            'in the namespace "lab"',
            r"ada .*patch deployments\.apps .* lab; .* Role .*patch .*deployments\.apps",
        ),
        (
            'pods is forbidden: User "ada" cannot list resource "pods" in API group "" in the namespace "lab"',
            "ada .*list pods .* lab; .* Role .*list .*pods",
        ),
        (
            'namespaces is forbidden: User "system:serviceaccount:lab:bot" cannot create resource "namespaces" in API '
            'group "" at the cluster scope',
            "system:serviceaccount:lab:bot .*create namespaces .*cluster; .* ClusterRole .*create .*namespaces",
        ),
    ],
    ids=["group", "core", "cluster scope"],
)
def test_a_missing_permission_is_named(message: str, fact: str) -> None:
    error = refused(403, message)
    assert isinstance(error, UserError)
    assert re.search(fact, str(error))


def test_a_refused_port_forward_names_its_permission_too() -> None:
    # A refused WebSocket has no body. Its reason contains the whole answer.
    body = (
        'Handshake status 403 Forbidden -+-+- {} -+-+- b\'{"message":"forbidden: User \\"ada\\" '
        'cannot get resource \\"pods/portforward\\" in API group \\"\\" in the namespace \\"lab\\""}\''
    )
    error = explained(ApiException(status=0, reason=body), "forward port 50051")
    assert re.search("ada .*get pods/portforward .* lab; .* Role .*get .*pods/portforward", str(error))


def test_other_refusals_keep_the_servers_words() -> None:
    quota = refused(403, 'pods "x" is forbidden: exceeded quota')
    assert str(quota).endswith('apply Service learner: pods "x" is forbidden: exceeded quota')
    assert isinstance(quota, QuotaError)
    assert isinstance(refused(403, 'pods "x" is forbidden: status unknown for quota: lab'), QuotaError)
    assert not isinstance(refused(403, "denied by a webhook"), QuotaError)
    assert isinstance(refused(404, "not there"), NotFoundError)
    assert isinstance(refused(409, "it exists"), ConflictError)
    assert str(refused(422, "spec.ports:\n  Required")).endswith("apply Service learner: spec.ports: Required")
    assert str(refused(500, "broken")).endswith("apply Service learner: broken")
    assert str(explained(ApiException(status=503, reason="Unavailable"), "look")).endswith("look: Unavailable")


def test_refused_credentials_are_named() -> None:
    assert "credentials" in str(refused(401, "Unauthorized"))


def test_a_missing_namespace_is_named_with_the_command_that_makes_it() -> None:
    assert re.search("namespace lab .*kubectl create namespace lab", str(refused(404, 'namespaces "lab" not found')))


def test_a_volume_that_cannot_grow_is_named_with_the_reason() -> None:
    said = (
        'persistentvolumeclaims "policies" is forbidden: only dynamically provisioned pvc can be resized and the '
        "storageclass that provisions the pvc must support resize"
    )
    assert re.search("volume policies .*StorageClass", str(refused(403, said)))


def test_a_statefulset_that_cannot_change_gets_a_remedy() -> None:
    said = (
        'StatefulSet.apps "learner" is invalid: spec: Forbidden: updates to statefulset spec for fields other than '
        "'replicas', 'template' and 'updateStrategy' are forbidden"
    )
    assert re.search("are forbidden; .*`kubectl delete statefulset NAME --cascade=orphan`", str(refused(422, said)))
