"""Puts a run's objects into a namespace, and takes them out again."""

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
    """Make the run's objects; nothing is made where the cluster would refuse one of them.

    Raises UserError for a namespace with another run or another run's volume, for settings that the run keeps, and for
    what the cluster refuses.

    ask: for the status of the learner that is there, None when it does not run.
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
    # Written before the first object: whatever happens from here on, `down` finds it.
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
    """Delete what `apply` made and wait until its pods have ended; volumes stay unless told otherwise."""
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
            say(f"volume {name} kept: `up` goes on with it, `down --delete-volume` deletes it")
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
    """Raise UserError for an object that is there and not this run's: `up` would change it, and `down` delete it."""
    api_version, kind, called = manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]
    found = cluster.get(api_version, kind, called)
    # Volumes outlive a run that was applied with kubectl; those of other runs are told apart before.
    if found is None or kind == VOLUME or (found["metadata"].get("labels") or {}).get(RUN_LABEL) == name:
        return
    raise UserError(
        f"{kind} {called} in namespace {cluster.namespace} is not of run {name}, which needs one of that name: choose "
        f"another namespace with -n, or delete it with `kubectl delete {kind.lower()} {called} -n {cluster.namespace}`"
    )


def _ensure_shared(cluster: Cluster, manifests: Sequence[Object], say: Callable[[str], None]) -> list[Object]:
    """Make what lives in no namespace (Namespace, PriorityClass) where it is missing; returns the other objects.

    Runs of other namespaces may use it: it is neither changed nor removed, and it is the only part of a run that may
    need more than permissions for one namespace.
    """
    own = []
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if cluster.is_namespaced(manifest["apiVersion"], kind):
            own.append(manifest)
        elif _is_missing(cluster, manifest, say):
            cluster.apply(manifest)
            say(f"{kind} {name} made; it may be shared, `down` leaves it")
    return own


def _is_missing(cluster: Cluster, manifest: Object, say: Callable[[str], None]) -> bool:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    try:
        return cluster.get(manifest["apiVersion"], kind, name) is None
    except UserError as error:
        # Who may not look at it cannot make it either. When it is there, nothing more is needed.
        say(f"{kind} {name} is taken to exist ({error})")
        return False


def _delete(cluster: Cluster, reference: Reference) -> None:
    # A kind that the cluster has no more has taken its objects along.
    if cluster.has_kind(reference.api_version, reference.kind):
        cluster.delete(reference.api_version, reference.kind, reference.name)


def _await_no_volumes(cluster: Cluster, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Wait until the cluster has let go of them: a next run's pods would wait for ever for one that is still going."""
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
