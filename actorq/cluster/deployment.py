"""Creates a run's objects in a namespace, and removes them."""

from collections.abc import Callable, Sequence

from actorq.cluster import configuration, inventory
from actorq.cluster.connection import Cluster
from actorq.cluster.inventory import Inventory, Reference
from actorq.cluster.objects import ACTORQ, RUN_LABEL, Object
from actorq.cluster.storage import VOLUME, require_changeable, volumes
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, UserError

_CHANGE_S = 2


def apply(
    cluster: Cluster,
    manifests: Sequence[Object],
    name: str,
    say: Callable[[str], None],
    ask: Callable[[], RunStatus | None] = lambda: None,
) -> None:
    """Create the run's objects, or none of them if the cluster would refuse one.

    Raises UserError for a namespace with another run or another run's volume, for settings that the run must keep, and
    for refusals of the cluster.

    ask: returns the status of the existing learner, None when it does not run.
    """
    before = inventory.read(cluster)
    _check_alone(cluster, before, name)
    configuration.require_time_to_end(manifests)
    configuration.require_same_run(cluster, manifests, ask, say)
    own = _ensure_shared(cluster, manifests, say)
    for manifest in own:
        _check_free(cluster, manifest, name)
        require_changeable(cluster, manifest)
        cluster.apply(manifest, dry_run=True)
    references = tuple(Reference.of(manifest) for manifest in own)
    # Written before the first object, so that `down` finds all objects whatever happens.
    if before is None:
        inventory.claim(cluster, Inventory(name, references))
    else:
        inventory.write(cluster, before.extended(references))
    try:
        for manifest in own:
            cluster.apply(manifest)
        for left in before.objects if before else ():
            if left not in references and left.kind != VOLUME:
                _delete(cluster, left)
    except ActorQError as error:
        raise type(error)(f"{error} (`actorq cluster down -n {cluster.namespace}` removes what was made)") from error
    inventory.write(cluster, Inventory(name, references))


def remove(cluster: Cluster, delete_volume: bool, say: Callable[[str], None]) -> None:
    """Delete the objects of `apply` and wait until the pods have ended. Volumes stay unless `delete_volume`."""
    made = inventory.read(cluster)
    if made is None and not (delete_volume and volumes(cluster)):
        raise UserError(
            f"namespace {cluster.namespace} has no run of `actorq cluster up`: name another with -n, or delete what "
            "was applied in another way with kubectl"
        )
    for reference in reversed(made.objects if made else ()):
        if reference.kind != VOLUME:
            _delete(cluster, reference)
    _await_no_pods(cluster, say)
    names = [volume["metadata"]["name"] for volume in volumes(cluster)]
    for name in names:
        if delete_volume:
            cluster.delete("v1", VOLUME, name)
        else:
            say(f"volume {name} kept: `up` continues with it, `down --delete-volume` deletes it")
    if delete_volume:
        _await_no_volumes(cluster, names, say)
    inventory.erase(cluster)


def _check_alone(cluster: Cluster, before: Inventory | None, name: str) -> None:
    where = f"namespace {cluster.namespace}"
    if before is not None and before.name != name:
        raise UserError(
            f"{where} has run {before.name!r} already: choose another namespace with -n, or end that run with "
            f"`actorq cluster down -n {cluster.namespace}`, or change it with --name {before.name}"
        )
    if before is None and (workloads := cluster.list("apps/v1", "StatefulSet", ACTORQ)):
        raise UserError(
            f"{where} has a run that `actorq cluster up` did not make (StatefulSet "
            f"{workloads[0]['metadata']['name']}): choose another namespace with -n, or delete it with kubectl"
        )
    for volume in volumes(cluster):
        owner = (volume["metadata"].get("labels") or {}).get(RUN_LABEL)
        if owner not in (None, name):
            raise UserError(
                f"volume {volume['metadata']['name']} in {where} belongs to run {owner!r}: go on with that run by "
                f"--name {owner}, delete its volume with `actorq cluster down --delete-volume -n {cluster.namespace}`, "
                "or choose another namespace with -n"
            )


def _check_free(cluster: Cluster, manifest: Object, name: str) -> None:
    """Raise UserError for an existing object that is not this run's: `up` would change it, and `down` delete it."""
    api_version, kind, called = manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]
    found = cluster.get(api_version, kind, called)
    # Volumes outlive a run that was applied with kubectl. Volumes of other runs are detected before.
    if found is None or kind == VOLUME or (found["metadata"].get("labels") or {}).get(RUN_LABEL) == name:
        return
    raise UserError(
        f"{kind} {called} in namespace {cluster.namespace} is not of run {name}, which needs this name: choose "
        f"another namespace with -n, or delete it with `kubectl delete {kind.lower()} {called} -n {cluster.namespace}`"
    )


def _ensure_shared(cluster: Cluster, manifests: Sequence[Object], say: Callable[[str], None]) -> list[Object]:
    """Create missing objects without a namespace (Namespace, PriorityClass). Returns the other objects.

    Runs of other namespaces may share them, so they are neither changed nor removed. Only these objects may need
    permissions beyond one namespace.
    """
    own = []
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if cluster.is_namespaced(manifest["apiVersion"], kind):
            own.append(manifest)
        elif _is_missing(cluster, manifest, say):
            cluster.apply(manifest)
            say(f"{kind} {name} created; other runs may share it, so `down` keeps it")
    return own


def _is_missing(cluster: Cluster, manifest: Object, say: Callable[[str], None]) -> bool:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    try:
        return cluster.get(manifest["apiVersion"], kind, name) is None
    except UserError as error:
        # A user who may not read it cannot create it either. If it exists, nothing more is needed.
        say(f"{kind} {name} is assumed to exist ({error})")
        return False


def _delete(cluster: Cluster, reference: Reference) -> None:
    # When a kind was removed from the cluster, its objects are gone too.
    if cluster.has_kind(reference.api_version, reference.kind):
        cluster.delete(reference.api_version, reference.kind, reference.name)


def _await_no_volumes(cluster: Cluster, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Wait until the volumes are gone: the next run's pods would wait forever for one that is still being deleted."""
    left = list(names)
    while left:
        there = {volume["metadata"]["name"] for volume in volumes(cluster)}
        for name in [name for name in left if name not in there]:
            left.remove(name)
            say(f"volume {name} deleted")
        if left:
            cluster.await_pod_change(ACTORQ, _CHANGE_S)


def _await_no_pods(cluster: Cluster, say: Callable[[str], None]) -> None:
    told = -1
    while pods := cluster.list("v1", "Pod", ACTORQ):
        if len(pods) != told:
            told = len(pods)
            say(f"waiting for {told} pod{'s' if told > 1 else ''} to save and end")
        cluster.await_pod_change(ACTORQ, _CHANGE_S)
