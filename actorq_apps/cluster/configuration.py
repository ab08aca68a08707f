"""The configuration of a run on a cluster: the settings that an overlay changes, and the pods that then restart."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.objects import WORKLOADS, Object, items, name_of, part

# Annotation of a pod: the digest of the configuration at its start. A different digest replaces the pod.
ANNOTATION = "actorq/configuration"
_FILE = "config.yaml"


def stamp(manifests: Sequence[Object]) -> None:
    """Write the digest of the mounted ConfigMaps into each pod template. A changed ConfigMap then replaces the pods."""
    for manifest in manifests:
        if mounted := _mounted(_pod_of(manifest), manifests):
            metadata = manifest["spec"]["template"].setdefault("metadata", {})
            metadata["annotations"] = {**part(metadata, "annotations"), ANNOTATION: _digest(mounted)}


def forbidden_change(found: Mapping[tuple[str, str], Object], wanted: Sequence[Object], over: bool = False) -> str:
    """Describe a change of a setting that the run must keep; empty if there is none. Raises UserError.

    found: the objects in the cluster, by kind and name. over: whether the run is over and therefore keeps all settings.
    """
    for each in wanted:
        there = found.get((each["kind"], name_of(each)))
        if each["kind"] != "ConfigMap" or there is None or _FILE not in part(there, "data"):
            continue
        try:
            earlier = _config(there)
        except UserError:
            # The configuration in the cluster is invalid. The new one repairs it.
            continue
        before, after = (
            dict(settings.flat(config.model_dump(mode="json") if over else json.loads(json.dumps(config.fixed))))
            for config in (earlier, _config(each))
        )
        for name in {**before, **after}:
            if before.get(name) != after.get(name):
                return f"{name} is {before.get(name)!r} and cannot become {after.get(name)!r}"
    return ""


def require_time_to_end(manifests: Sequence[Object]) -> None:
    """Raise UserError when the kubelet would kill a pod before its service has drained."""
    for manifest in manifests:
        pod = _pod_of(manifest)
        configs = [_config(each) for each in _mounted(pod, manifests) if _FILE in part(each, "data")]
        grace_s = pod.get("terminationGracePeriodSeconds")
        drain_s = max((config.transport.drain_s for config in configs), default=0.0)
        if isinstance(grace_s, int) and grace_s <= drain_s:
            raise UserError(
                f"transport.drain_s is {drain_s:g} s, but the cluster kills pods of {manifest['kind']} "
                f"{name_of(manifest)} after {grace_s} s: lower transport.drain_s, or raise the pods' "
                "terminationGracePeriodSeconds above it"
            )


def require_steps(manifests: Sequence[Object]) -> None:
    """Raise UserError for an offline run, which makes no steps and whose learner refuses actors."""
    mounted = [each for manifest in manifests for each in _mounted(_pod_of(manifest), manifests)]
    for each in mounted:
        if _FILE in part(each, "data") and _config(each).offline:
            raise UserError(
                f"offline is true in {_FILE} of ConfigMap {name_of(each)}, but `actorq cluster up` waits for the steps "
                "of actors: use a TrainingRun with spec.actors.replicas 0"
            )


def stale_pods(cluster: Cluster, pods: Sequence[Object]) -> list[str]:
    """Names of the pods that started with a different configuration than the ConfigMaps have now."""
    maps = cluster.list("v1", "ConfigMap")
    return [
        name_of(pod)
        for pod in pods
        if (digest := part(pod, "metadata", "annotations").get(ANNOTATION))
        and not pod["metadata"].get("deletionTimestamp")
        and (mounted := _mounted(part(pod, "spec"), maps))
        and _digest(mounted) != digest
    ]


def _pod_of(manifest: Object) -> Object:
    """The specification of a workload's pods; empty for other objects."""
    return part(manifest, "spec", "template", "spec") if manifest["kind"] in WORKLOADS else {}


def _mounted(pod: Object, manifests: Sequence[Object]) -> list[Object]:
    """The ConfigMaps that a pod requires, in the order of its volumes. Services read optional ConfigMaps live."""
    maps = {name_of(each): each for each in manifests if each["kind"] == "ConfigMap"}
    mounts = [part(volume, "configMap") for volume in items(pod, "volumes")]
    names = [str(mount.get("name")) for mount in mounts if not mount.get("optional")]
    return [maps[name] for name in names if name in maps]


def _digest(maps: Sequence[Object]) -> str:
    """Digest of the meaning of ConfigMaps. It ignores comments and the order of settings."""
    meant = [[name_of(each), {key: _meaning(key, text) for key, text in part(each, "data").items()}] for each in maps]
    return hashlib.sha256(json.dumps(meant, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _meaning(key: str, text: Any) -> Any:
    try:
        return settings.from_yaml(text) if key.endswith((".yaml", ".yml")) else text
    except ValueError:
        return text


def _config(config_map: Object) -> RunConfig:
    """The settings in a ConfigMap. Raises UserError."""
    where = f"{_FILE} of ConfigMap {name_of(config_map)}"
    try:
        tree = settings.from_yaml(str(part(config_map, "data")[_FILE]))
    except ValueError as error:
        raise UserError(f"{where} is not YAML: {error}") from None
    if not isinstance(tree or {}, dict):
        raise UserError(f"{where}: expected settings, such as `environment: CartPole-v1`, got {tree!r:.60}")
    of_run = {key: value for key, value in (tree or {}).items() if key != "process"}
    try:
        return settings.build(RunConfig, of_run)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
