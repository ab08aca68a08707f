"""Applies and deletes the objects of a run, as kubectl does, by the label with the run's name."""

from collections.abc import Callable, Sequence

from actorq.errors import UserError
from actorq_apps.cluster import configuration
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.diagnosis import live_pods
from actorq_apps.cluster.objects import ACTORQ, DIGEST, RUN_LABEL, VOLUME, Object, items, name_of, part, run_of

# The kinds in k8s/ that belong to a namespace. Secrets are missing, because the manifests have none.
_KINDS = {
    "apps/v1": ("StatefulSet", "Deployment"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "keda.sh/v1alpha1": ("ScaledObject", "TriggerAuthentication"),
    "policy/v1": ("PodDisruptionBudget",),
    # Kubernetes before 1.21 has only this version.
    "policy/v1beta1": ("PodDisruptionBudget",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "cert-manager.io/v1": ("Certificate", "Issuer"),
    "monitoring.coreos.com/v1": ("ServiceMonitor", "PodMonitor", "PrometheusRule"),
    "v1": ("Service", "ServiceAccount", "ConfigMap", VOLUME),
}
_CHANGE_S = 2


def apply(cluster: Cluster, manifests: Sequence[Object], name: str, has_begun: Callable[[], bool]) -> None:
    """Create or change the run's objects; delete its other objects. If the cluster refuses one, nothing changes.

    Raises UserError for objects of other runs, for settings that the run must keep, and for refusals of the cluster.
    has_begun: whether the run has made steps. Called only when a setting changes that such a run must keep.
    """
    configuration.require_time_to_end(manifests)
    configuration.require_steps(manifests)
    _require_own_selectors(cluster, manifests, name)
    before = {(each["kind"], name_of(each)): each for each in _labeled(cluster, name) if _is_of(each, name)}
    if (change := configuration.forbidden_change(before, manifests)) and has_begun():
        raise UserError(f"{change}: the run keeps it; set it back, or begin another run with --name or -n")
    own = []
    for manifest in manifests:
        if cluster.is_namespaced(manifest["apiVersion"], manifest["kind"]):
            _require_own(cluster, manifest, name)
            own.append(manifest)
        else:
            # These objects come first, because they may include the namespace. They are kept, because other runs may
            # share them.
            cluster.apply(manifest)
    for dry_run in (True, False):
        for manifest in own:
            cluster.apply(manifest, dry_run)
    wanted = {(each["kind"], name_of(each)) for each in own}
    _delete(cluster, [each for key, each in before.items() if key not in wanted and each["kind"] != VOLUME])


def delete(cluster: Cluster, delete_volume: bool, say: Callable[[str], None]) -> str:
    """Delete the objects of `apply` and wait until the pods have ended. Volumes stay unless `delete_volume` is set.

    Returns the name of the run. Raises UserError when there are no runs, several runs, or only TrainingRuns.
    """
    labeled = _labeled(cluster, cluster.run)
    own = [each for each in labeled if _is_of(each, run_of(each))]
    found = [each for each in own if delete_volume or each["kind"] != VOLUME]
    runs = sorted({run_of(each) for each in found})
    training_runs = sorted({run_of(each) for each in labeled if _is_operators(each)})
    if training_runs and not runs:
        name = training_runs[0] if len(training_runs) == 1 else "NAME"
        raise UserError(
            f"{', '.join(training_runs)} in namespace {cluster.namespace} is no run of `actorq cluster up` but a "
            f"TrainingRun: delete it with `kubectl delete trainingrun {name} -n {cluster.namespace}`, and its volumes "
            f"with `kubectl delete pvc -l {RUN_LABEL}={name} -n {cluster.namespace}`"
        )
    if not runs:
        raise UserError(
            f"namespace {cluster.namespace} has no run of `actorq cluster up`: name another with -n, or delete what "
            "was applied in another way with kubectl"
        )
    if len(runs) > 1:
        raise UserError(f"namespace {cluster.namespace} has runs {', '.join(runs)}: choose one with --run")
    _delete(cluster, found)
    volumes = {name_of(each) for each in found if each["kind"] == VOLUME}
    # If a TrainingRun has the same name, the labeled pods belong to it.
    labels = {"", *runs} - set(training_runs)
    shown = ""
    while left := _left(cluster, runs[0], labels, volumes):
        if left != shown:
            shown = left
            say(f"waiting for {left} to end")
        cluster.await_pod_change(ACTORQ, _CHANGE_S)
    return runs[0]


def _labeled(cluster: Cluster, run: str) -> list[Object]:
    """The objects with a run's label, regardless of their creator; the objects of all runs for an empty name."""
    return [
        each
        for api_version, kinds in _KINDS.items()
        for kind in kinds
        if cluster.has_kind(api_version, kind)
        for each in cluster.list(api_version, kind, f"{RUN_LABEL}={run}" if run else RUN_LABEL)
    ]


def _is_of(found: Object, run: str) -> bool:
    """Whether `apply` created an object for a run. A TrainingRun owns its objects, except retained volumes."""
    return run_of(found) == run and not items(found["metadata"], "ownerReferences") and not _is_operators(found)


def _is_operators(found: Object) -> bool:
    return DIGEST in part(found, "metadata", "annotations")


def _delete(cluster: Cluster, found: Sequence[Object]) -> None:
    for each in found:
        cluster.delete(each["apiVersion"], each["kind"], name_of(each))


def _left(cluster: Cluster, run: str, labels: set[str], volumes: set[str]) -> str:
    """The remaining pods and volumes, in words. A pod would wait forever for a volume that is being deleted."""
    pods = [each for each in live_pods(cluster.list("v1", "Pod", ACTORQ)) if run_of(each) in labels]
    there = cluster.list("v1", VOLUME, f"{RUN_LABEL}={run}") if volumes else []
    numbers = {"pods": len(pods), "volumes": len(volumes & {name_of(each) for each in there})}
    return " and ".join(f"{what} ({number})" for what, number in numbers.items() if number)


def _require_own_selectors(cluster: Cluster, manifests: Sequence[Object], name: str) -> None:
    """Raise UserError if the namespace has another run, unless the selectors of both contain their names."""
    there = cluster.list("apps/v1", "StatefulSet", ACTORQ)
    others = [each for each in there if not _is_of(each, name)]
    sets = [*others, *(each for each in manifests if each["kind"] == "StatefulSet")]
    if others and not all(RUN_LABEL in part(each, "spec", "selector", "matchLabels") for each in sets):
        raise UserError(
            f"namespace {cluster.namespace} has another run (StatefulSet {name_of(others[0])}): choose another "
            "namespace with -n; runs share a namespace only if `up` gave each of them a --name"
        )


def _require_own(cluster: Cluster, manifest: Object, name: str) -> None:
    """Raise UserError for an existing object of another owner: `up` would change it, and `down` would delete it."""
    kind, called = manifest["kind"], name_of(manifest)
    found = cluster.get(manifest["apiVersion"], kind, called)
    # Volumes outlive a run that was applied with kubectl.
    if found is None or _is_of(found, name) or (kind == VOLUME and _is_of(found, "")):
        return
    whose = f"not of run {name}, which needs this name"
    if kind == VOLUME and _is_operators(found):
        whose = f"of TrainingRun {run_of(found)}, which continues from it when it is made again"
    raise UserError(
        f"{kind} {called} in namespace {cluster.namespace} is {whose}: choose another namespace with "
        "-n, or another name with --name, or delete it with `kubectl delete "
        f"{kind.lower()} {called} -n {cluster.namespace}`"
    )
