"""Compares the objects that a run needs with those in the cluster. Works on values, without a cluster."""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from actorq.errors import UserError
from actorq_apps.cluster.answers import ForbiddenError, QuotaError
from actorq_apps.cluster.configuration import forbidden_change
from actorq_apps.cluster.connection import UnreachableError
from actorq_apps.cluster.diagnosis import Fault
from actorq_apps.cluster.manifests import component_of
from actorq_apps.cluster.objects import DIGEST, RUN_LABEL, VOLUME, WORKLOADS, Object, items, name_of, part
from actorq_apps.operator.resource.training_run import KIND

# The ClusterRole with the operator's permissions in a namespace with runs (k8s/operator/rbac.yaml).
_ROLE = "actorq-operator-runs"
_ACCOUNT = re.compile(r"system:serviceaccount:(?P<namespace>[^:]+):(?P<name>[^:]+)")
# A StatefulSet's refusal, and the refusal for other fields that never change.
_FIXED_FIELDS = ("Forbidden: updates to", "field is immutable")
# Kinds whose fields the API server returns as applied. Volumes may grow, and controllers change other kinds.
_COMPARED = (
    *("Deployment", "StatefulSet", "Service", "ConfigMap", "ServiceAccount"),
    *("NetworkPolicy", "PodDisruptionBudget"),
)
# Mappings whose meaning an additional key changes. A Service then selects nothing, for example.
_WHOLE = ("selector", "matchLabels", "data")
_IGNORED = ("apiVersion", "kind", "status", "volumeClaimTemplates", "creationTimestamp")

Path = tuple[str, ...]
"""The keys that lead to a field."""


class Existing(dict[tuple[str, str], Object]):
    """Objects of a run in the cluster, by kind and name."""

    def of(self, *kinds: str) -> list[Object]:
        """The objects of these kinds."""
        return [each for (kind, _), each in self.items() if kind in kinds]


def stamped(manifest: Object) -> Object:
    """The manifest with its digest."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    metadata = part(manifest, "metadata")
    return {**manifest, "metadata": {**metadata, "annotations": {**part(metadata, "annotations"), DIGEST: digest}}}


def differs(wanted: Object, found: Object | None, left: Collection[Path] = ()) -> bool:
    """Whether an object must be applied. `wanted` has its digest.

    Ignores fields that the run does not set. left: changes by others that are ignored, too (`changes`).
    """
    if found is None:
        return True
    replicas = part(wanted, "spec").get("replicas")
    scaled = replicas is not None and replicas != part(found, "spec").get("replicas")
    return scaled or digest_of(wanted) != digest_of(found) or not changes(wanted, found) <= set(left)


def changes(wanted: Object, found: Object) -> set[Path]:
    """The paths of fields that somebody has changed since the object was applied."""
    return set(_changes(wanted, found, ())) if wanted["kind"] in _COMPARED else set()


def removal(wanted: Object, found: Object | None) -> Object:
    """The merge patch that removes additions of others that change the meaning; empty if there are none."""
    change: Object = {}
    for *names, last in changes(wanted, found) if found is not None else ():
        if names and names[-1] in _WHOLE and last not in part(wanted, *names):
            place = change
            for name in names:
                place = place.setdefault(name, {})
            place[last] = None
    return change


def _changes(wanted: Any, found: Any, path: Path) -> Iterator[Path]:
    if wanted in (None, "", {}, []):
        # The API server drops empty values.
        return
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name, value in wanted.items():
            if name not in _IGNORED:
                yield from _changes(value, found.get(name), (*path, name))
        if path and path[-1] in _WHOLE:
            yield from ((*path, name) for name in found if name not in wanted)
    elif isinstance(wanted, list) and isinstance(found, list):
        by_key = {_key(each): each for each in found}
        for index, value in enumerate(wanted):
            key = _key(value)
            other = by_key.get(key) if key else found[index] if index < len(found) else None
            yield from _changes(value, other, (*path, key or str(index)))
    elif not _is_same(wanted, found):
        yield path


def _key(item: Any) -> str:
    """The key of a list's item; empty for its position. Mounts have a path, because several may be of one volume."""
    return str(item.get("mountPath") or item.get("name") or "") if isinstance(item, dict) else ""


def _is_same(wanted: object, found: object) -> bool:
    if wanted == found or str(wanted) == str(found):
        return True
    try:
        # The API server writes 1000m as 1.
        return bool(parse_quantity(wanted) == parse_quantity(found))
    except (ValueError, TypeError):
        return False


def fitted(wanted: Object, found: Object | None) -> Object:
    """The object in a form that can be applied, with its existing volumes. Somebody may have enlarged them.

    Kubernetes shrinks no volume, and changes no template of volumes.
    """
    spec, there = part(wanted, "spec"), part(found, "spec")
    if wanted["kind"] == VOLUME and there:
        sizes = [str(part(each, "resources", "requests").get("storage") or 0) for each in (spec, there)]
        spec = {**spec, "resources": {"requests": {"storage": max(sizes, key=parse_quantity)}}}
    elif "volumeClaimTemplates" in there:
        spec = {**spec, "volumeClaimTemplates": there["volumeClaimTemplates"]}
    return {**wanted, "spec": spec} if spec else wanted


def digest_of(manifest: Object) -> str:
    """The digest with which an object was applied; empty for objects of others."""
    return str(part(manifest, "metadata", "annotations").get(DIGEST, ""))


def is_owned(found: Object, uid: str) -> bool:
    """Whether an object belongs to the TrainingRun with this uid."""
    return any(owner.get("uid") == uid for owner in items(found["metadata"], "ownerReferences"))


def foreign(found: Existing, wanted: Sequence[Object], name: str, uid: str) -> Fault | None:
    """The fault of an object of another owner that has a name the run needs."""
    for each in wanted:
        there = found.get((each["kind"], name_of(each)))
        if there is None or is_owned(there, uid):
            continue
        owners = items(there["metadata"], "ownerReferences")
        subject = f"{each['kind']} {name_of(each)}"
        if any((owner.get("kind"), owner.get("name")) == (KIND, name) for owner in owners):
            return Fault(subject, "of the earlier run of this name is still being deleted", reason="Starting")
        retained = each["kind"] == VOLUME and not owners
        if not (retained and part(there, "metadata", "labels").get(RUN_LABEL) == name):
            return Fault(subject, "exists and is not of this run: choose another name", reason="NameInUse")
    return None


def changed_setting(found: Existing, wanted: Sequence[Object], before: Object, over: bool) -> Fault | None:
    """The fault of a changed setting that a run with progress must keep. A finished run must keep all settings."""
    text = forbidden_change(found, wanted, over) if over or before.get("environmentSteps") else ""
    if not text:
        return None
    if over:
        # With another budget or target, the learner would continue training without actors.
        remedy = "to continue from its volumes, delete the TrainingRun and make it again with the new settings"
        return Fault("spec", f"{text}, because the run is over; {remedy}", reason="Immutable")
    return Fault("spec", f"{text}: the run keeps it; set it back, or make another run", reason="Immutable")


def no_longer_wanted(found: Existing, wanted: Sequence[Object], uid: str) -> list[Object]:
    """Objects that only an earlier specification needed, for example relays. Volumes and secrets are kept."""
    names = {(each["kind"], name_of(each)) for each in wanted}
    return [
        each
        for key, each in found.items()
        if key not in names and each["kind"] not in (VOLUME, "Secret") and is_owned(each, uid) and digest_of(each)
    ]


def to_scale_down(found: Existing, uid: str, resting: Collection[str]) -> list[Object]:
    """Workloads of resting components that may still have pods."""
    return [
        each
        for each in found.of(*WORKLOADS)
        if is_owned(each, uid) and part(each, "spec").get("replicas") != 0 and component_of(each) in resting
    ]


def refusal(error: UserError) -> Fault:
    """The fault of a request that the API server refuses. Re-raises the error of a server that does not answer."""
    if isinstance(error, UnreachableError):
        raise error
    text = str(error)
    reason = "Refused"
    if isinstance(error, QuotaError):
        reason = "Quota"
    elif isinstance(error, ForbiddenError):
        reason = "NoPermission"
        text = _allowed_by(error) or text
    elif any(each in text for each in _FIXED_FIELDS):
        reason = "Immutable"
    elif text.startswith("the cluster has no kind"):
        reason = "KindMissing"
        if "cert-manager.io" in text:
            lacks = text.partition(":")[0]
            text = f"{lacks}: install cert-manager, or make another TrainingRun with tls.mode generated"
    return Fault("the operator:", text, reason=reason)


def _allowed_by(error: ForbiddenError) -> str:
    """The refusal with the command that allows runs in its namespace; empty in the operator's own namespace."""
    account = _ACCOUNT.fullmatch(error.user)
    if account is None or error.namespace in ("", account["namespace"]):
        return ""
    command = (
        f"kubectl create rolebinding {_ROLE} -n {error.namespace} --clusterrole={_ROLE} "
        f"--serviceaccount={account['namespace']}:{account['name']}"
    )
    return f"{error.denied}; an administrator allows runs there with `{command}`"
