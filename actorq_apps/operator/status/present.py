"""Reads the objects of a run from the cluster."""

from collections.abc import Iterable, Sequence

from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.objects import RUN_LABEL, VOLUME, Object, name_of, part
from actorq_apps.operator.differences import Existing
from actorq_apps.operator.resource.training_run import TlsSpec

OF_WORKLOADS = (("apps/v1", "StatefulSet"), ("apps/v1", "Deployment"))
# Listed even when the specification is invalid or no longer needs them.
_ALWAYS = (
    *(("v1", kind) for kind in (VOLUME, "ConfigMap", "Service", "ServiceAccount")),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
)


def listed(cluster: Cluster, run: str, kinds: Iterable[tuple[str, str]]) -> Existing:
    """The objects of these kinds with the label of a run."""
    found = (each for kind in kinds for each in cluster.list(*kind, f"{RUN_LABEL}={run}"))
    return Existing(((each["kind"], name_of(each)), each) for each in found)


def others(cluster: Cluster, resource: Object, wanted: Sequence[Object], known: Existing) -> Existing:
    """The objects of a TrainingRun except its `known` workloads, and other owners' objects with names that it needs."""
    # Kubernetes before 1.21 has no policy/v1.
    always = [each for each in _ALWAYS if cluster.has_kind(*each)]
    # In other modes, the operator needs no permission for Secrets.
    always += [("v1", "Secret")] if tls_mode(resource) == "generated" else []
    kinds = dict.fromkeys((*always, *((each["apiVersion"], each["kind"]) for each in wanted)))
    found = listed(cluster, name_of(resource), [each for each in kinds if each not in OF_WORKLOADS])
    places = found | known
    found |= there(cluster, [each for each in wanted if (each["kind"], name_of(each)) not in places])
    return found


def there(cluster: Cluster, manifests: Iterable[Object]) -> Existing:
    """The objects with the names of these manifests, regardless of their owner."""
    places = {(each["kind"], name_of(each)): each["apiVersion"] for each in manifests}
    read = ((place, cluster.get(api_version, *place)) for place, api_version in places.items())
    return Existing((place, each) for place, each in read if each is not None)


def tls_mode(resource: Object) -> str:
    """The TLS mode of an object. The rest of its specification may be invalid."""
    return str(part(resource, "spec", "tls").get("mode") or TlsSpec.model_fields["mode"].default)
