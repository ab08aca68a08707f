"""The configuration of a run on a cluster: which settings an overlay changes, and which pods restart for them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from actorq.cluster.connection import Cluster
from actorq.cluster.objects import WORKLOADS, Object, items, name_of, part
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.settings import value_text
from actorq.domain.status import RunStatus
from actorq.errors import UserError

# Annotation of a pod: the digest of the configuration at its start. A new digest replaces the pod.
ANNOTATION = "actorq/configuration"
_FILE = "config.yaml"
_DIGEST_CHARACTERS = 16
# The run's checkpoints and replay depend on these settings. The learner refuses to resume with other values.
_KEPT = (
    "environment",
    "environment_args",
    "environment_wrappers",
    "algorithm",
    "algorithm_args",
    "network",
    "normalize_observations",
    "replay.capacity",
    "sparsity.method",
    "sparsity.actor",
    "sparsity.critic",
)
# The same, in the section of the run's algorithm.
_KEPT_OF_ALGORITHM = ("hidden_sizes", "policy_sizes", "critic_sizes", "dueling", "atoms")
_SHOWN = 3

Values = dict[str, Any]


def stamp(manifests: Sequence[Object]) -> None:
    """Write the digest of the mounted ConfigMaps into each pod template, so that changed ones replace the pods."""
    maps = {name_of(each): each for each in manifests if each["kind"] == "ConfigMap"}
    for manifest in manifests:
        mounted = [maps[name] for name in _mounted(manifest) if name in maps]
        if mounted:
            metadata = manifest["spec"]["template"].setdefault("metadata", {})
            metadata["annotations"] = {**part(metadata, "annotations"), ANNOTATION: _digest(mounted)}


def require_same_run(
    cluster: Cluster, manifests: Sequence[Object], ask: Callable[[], RunStatus | None], say: Callable[[str], None]
) -> None:
    """Report the settings that change for the existing run. Raises UserError for a setting that the run must keep.

    ask: returns the status of the run's learner, None when it does not run. Only called when such a setting differs.
    """
    wanted, found = _configured(manifests), _applied(cluster, manifests)
    if wanted is None or found is None:
        return
    after = _values(wanted)
    try:
        before = _values(found)
    except UserError:
        # The existing configuration is invalid, and this overlay repairs it.
        return
    changed = _changed(before, after)
    kept = _changed_of_kept(before, after)
    status = ask() if kept else None
    if status is not None and status.environment_steps:
        name = kept[0]
        raise UserError(
            f"the run in namespace {cluster.namespace} keeps its {name}: it is {before.get(name)!r}, the overlay says "
            f"{after.get(name)!r}; set it back, or begin another run in another namespace (-n), or end this one with "
            f"`actorq cluster down --delete-volume -n {cluster.namespace}`"
        )
    if changed:
        say(f"configuration changed: {_told(changed, before, after)}; the pods that read it are replaced")


def kept_setting(found: Object, wanted: Object) -> str:
    """What changes, although the run must keep it, from one ConfigMap of a run to the next; empty for nothing."""
    before, after = _values(found), _values(wanted)
    kept = _changed_of_kept(before, after)
    return f"{kept[0]} is {before.get(kept[0])!r} and cannot become {after.get(kept[0])!r}" if kept else ""


def require_time_to_end(manifests: Sequence[Object]) -> None:
    """Raise UserError when the kubelet would kill a pod before its service has drained."""
    wanted = _configured(manifests)
    if wanted is None:
        return
    drain_s = float(_values(wanted)["transport.drain_s"])
    for manifest in manifests:
        grace_s = part(manifest, "spec", "template", "spec").get("terminationGracePeriodSeconds")
        if name_of(wanted) in _mounted(manifest) and isinstance(grace_s, int) and grace_s <= drain_s:
            raise UserError(
                f"transport.drain_s is {drain_s:g} s, but the cluster kills pods of {manifest['kind']} "
                f"{name_of(manifest)} after {grace_s} s: lower transport.drain_s, or raise the pods' "
                "terminationGracePeriodSeconds above it"
            )


def stale_pods(cluster: Cluster, pods: Sequence[Object]) -> list[str]:
    """Names of the pods that started with another configuration than the ConfigMaps now hold."""
    found: dict[str, Object | None] = {}
    stale = []
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        digest = part(pod, "metadata", "annotations").get(ANNOTATION)
        names = list(_config_maps(part(pod, "spec"))) if digest else []
        for name in names:
            if name not in found:
                found[name] = cluster.get("v1", "ConfigMap", name)
        maps = [each for name in names if (each := found[name]) is not None]
        if maps and _digest(maps) != digest:
            stale.append(name_of(pod))
    return stale


def _mounted(manifest: Object) -> list[str]:
    """Names of the ConfigMaps that a workload's pods mount."""
    if manifest["kind"] not in WORKLOADS:
        return []
    return list(_config_maps(part(manifest, "spec", "template", "spec")))


def _config_maps(pod: Object) -> Iterator[str]:
    for volume in items(pod, "volumes"):
        if name := part(volume, "configMap").get("name"):
            yield str(name)


def _digest(maps: Sequence[Object]) -> str:
    """Digest of the meaning of ConfigMaps: comments and the order of settings do not count."""
    meant = [[name_of(each), {key: _meaning(key, text) for key, text in part(each, "data").items()}] for each in maps]
    return hashlib.sha256(json.dumps(meant, sort_keys=True, default=str).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _meaning(key: str, text: Any) -> Any:
    try:
        return yaml.safe_load(text) if key.endswith((".yaml", ".yml")) else text
    except yaml.YAMLError:
        return text


def _configured(manifests: Sequence[Object]) -> Object | None:
    """The ConfigMap of the run's configuration: the one with config.yaml that a StatefulSet mounts."""
    mounted = {name for each in manifests if each["kind"] == "StatefulSet" for name in _mounted(each)}
    maps = [each for each in manifests if each["kind"] == "ConfigMap" and name_of(each) in mounted]
    return next((each for each in maps if _FILE in part(each, "data")), None)


def _applied(cluster: Cluster, manifests: Sequence[Object]) -> Object | None:
    """The same ConfigMap of the run in the namespace; None when there is no run."""
    there: list[Object] = []
    for each in manifests:
        if (
            each["kind"] == "StatefulSet"
            and (found := cluster.get("apps/v1", "StatefulSet", name_of(each))) is not None
        ):
            maps = (cluster.get("v1", "ConfigMap", name) for name in _mounted(found))
            there += [found, *(each for each in maps if each is not None)]
    return _configured(there)


def _values(config_map: Object) -> Values:
    """All settings of a configuration by name, including defaults. Raises UserError."""
    where = f"{_FILE} of ConfigMap {name_of(config_map)}"
    try:
        tree = yaml.safe_load(str(part(config_map, "data")[_FILE]))
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree or {}, dict):
        raise UserError(f"{where}: expected settings, such as `environment: CartPole-v1`, got {tree!r:.60}")
    of_run = {key: value for key, value in (tree or {}).items() if key != "process"}
    try:
        config = settings.build(RunConfig, of_run)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return dict(_flat(config.model_dump(mode="json")))


def _flat(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _kept(values: Values) -> set[str]:
    return {*_KEPT, *(f"{values['algorithm']}.{name}" for name in _KEPT_OF_ALGORITHM)}


def _changed(before: Values, after: Values) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _changed_of_kept(before: Values, after: Values) -> list[str]:
    kept = _kept(before)
    return [name for name in _changed(before, after) if kept & {name, name.partition(".")[0]}]


def _told(changed: Sequence[str], before: Values, after: Values) -> str:
    shown = [f"{name} {value_text(before.get(name))} -> {value_text(after.get(name))}" for name in changed[:_SHOWN]]
    more = len(changed) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
