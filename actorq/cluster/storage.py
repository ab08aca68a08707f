"""The volumes of a run: creates them under the run's name, and checks changes that Kubernetes cannot make."""

from collections.abc import Iterator
from copy import deepcopy

from kubernetes.utils.quantity import parse_quantity

from actorq.cluster.connection import Cluster
from actorq.cluster.objects import ACTORQ, RUN_LABEL, Object, items, name_of, part
from actorq.errors import UserError

VOLUME = "PersistentVolumeClaim"


def volumes(cluster: Cluster) -> list[Object]:
    """The volume claims of runs in the namespace, including runs that are gone."""
    return cluster.list("v1", VOLUME, ACTORQ)


def claims(manifest: Object, name: str) -> Iterator[Object]:
    """The volume claims of a StatefulSet's first pod, labeled with the run's name.

    The label cannot be in the StatefulSet's own template of the claim. Kubernetes never changes such a template, so
    `kubectl apply -k` would fail on the difference. The StatefulSet uses an existing claim of that name.
    """
    if manifest["kind"] != "StatefulSet":
        return
    selected = part(manifest, "spec", "selector", "matchLabels")
    for template in items(part(manifest, "spec"), "volumeClaimTemplates"):
        metadata = part(template, "metadata")
        claim: Object = {
            "apiVersion": "v1",
            "kind": VOLUME,
            "metadata": {
                "name": f"{metadata.get('name')}-{name_of(manifest)}-0",
                "labels": {**part(metadata, "labels"), **selected, RUN_LABEL: name},
            },
        }
        if namespace := manifest["metadata"].get("namespace"):
            claim["metadata"]["namespace"] = namespace
        yield {**claim, "spec": deepcopy(part(template, "spec"))}


def require_changeable(cluster: Cluster, manifest: Object) -> None:
    """Raise UserError when a manifest needs a change of a volume that Kubernetes cannot make."""
    if manifest["kind"] == VOLUME:
        _require_no_shrinking(cluster, manifest)
    elif manifest["kind"] == "StatefulSet":
        _require_same_templates(cluster, manifest)


def _require_no_shrinking(cluster: Cluster, manifest: Object) -> None:
    found = cluster.get("v1", VOLUME, name_of(manifest))
    if found is None:
        return
    there, wanted = _size(found), _size(manifest)
    if there and wanted and parse_quantity(wanted) < parse_quantity(there):
        raise UserError(
            f"volume {name_of(manifest)} has {there}, the overlay says {wanted}: a volume cannot shrink; set {there} "
            f"in the overlay, or delete the run with `actorq cluster down --delete-volume -n {cluster.namespace}`"
        )


def _require_same_templates(cluster: Cluster, manifest: Object) -> None:
    found = cluster.get("apps/v1", "StatefulSet", name_of(manifest))
    if found is None:
        return
    name = name_of(manifest)
    again = (
        f"run `kubectl delete statefulset {name} --cascade=orphan -n {cluster.namespace}` and `up` again; the pod and "
        "its volume stay"
    )
    wanted = _templates(manifest)
    for template, there in _templates(found).items():
        if RUN_LABEL in part(there, "metadata", "labels"):
            raise UserError(
                f"StatefulSet {name} was made by an earlier version: the label {RUN_LABEL} in its volume's template "
                f"keeps `kubectl apply -k` from working; {again}"
            )
        before, after = _size(there), _size(wanted.get(template, {}))
        if before and after and parse_quantity(before) != parse_quantity(after):
            raise UserError(
                f"volume {template} of StatefulSet {name} has {before}, the overlay says {after}: a StatefulSet keeps "
                f"the size; set {before} in the overlay, or {again}"
            )


def _templates(manifest: Object) -> dict[str, Object]:
    """The templates of volume claims of a StatefulSet, by name."""
    templates = items(part(manifest, "spec"), "volumeClaimTemplates")
    return {str(part(each, "metadata").get("name")): each for each in templates}


def _size(claim: Object) -> str:
    return str(part(claim, "spec", "resources", "requests").get("storage") or "")
