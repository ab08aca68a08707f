"""Builds the manifests of k8s/ like `kubectl kustomize`. Supports only features that k8s/base and its components use.

The operator's image therefore does not need kubectl. A test compares both results.
"""

import re
from collections.abc import Iterable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from actorq.errors import UserError
from actorq_apps.cluster.objects import Object, documents, name_of, part

_FILE = "kustomization.yaml"
_KNOWN = {"apiVersion", "kind", "resources", "labels", "configMapGenerator", "generatorOptions", "patches"}
# Lists that a strategic merge patch merges by a key of their items, as in the schema of pods. It replaces other lists.
_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
_TEMPLATES = ("spec/template/metadata/labels", "spec/volumeClaimTemplates[]/metadata/labels")


def build(base: Path, components: Iterable[Path] = ()) -> list[Object]:
    """The objects of the folder `base`, changed by the component folders in their order.

    Raises UserError when a file is missing, is not YAML, or uses an unsupported feature.
    """
    objects: list[Object] = []
    for folder in (base, *components):
        _add(objects, folder)
    return objects


def merge_patch(target: Any, patch: Any, field: str = "") -> Any:
    """`target` changed by a strategic merge patch."""
    if isinstance(target, dict) and isinstance(patch, dict):
        changed = {name: merge_patch(target.get(name), value, name) for name, value in patch.items()}
        return {name: value for name, value in {**target, **changed}.items() if value is not None}
    key = _KEYS.get(field)
    if isinstance(target, list) and isinstance(patch, list) and key:
        changes = {each[key]: each for each in patch}
        kept = [merge_patch(each, changes.pop(each[key], {})) for each in target]
        return [*deepcopy(list(changes.values())), *kept]
    return deepcopy(patch)


def _add(objects: list[Object], folder: Path) -> None:
    (tree,) = _documents(folder / _FILE)
    if unknown := sorted(tree.keys() - _KNOWN):
        raise UserError(f"{folder / _FILE}: the operator does not know {unknown[0]}")
    for name in tree.get("resources", ()):
        objects += _documents(folder / name)
    for each in tree.get("configMapGenerator", ()):
        data = {name: _text(folder / name) for name in each["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": each["name"]}, "data": data})
    for each in tree.get("labels", ()):
        fields = [field["path"] for field in each.get("fields", ())]
        for manifest in objects:
            _label(manifest, each["pairs"], [*fields, *(_TEMPLATES if each.get("includeTemplates") else ())])
    for each in tree.get("patches", ()):
        patch = _documents(folder / each["path"]) if "path" in each else list(yaml.safe_load_all(each["patch"]))
        _patch(objects, patch[0], each.get("target"), folder)


def _patch(objects: list[Object], patch: Any, target: Object | None, folder: Path) -> None:
    wanted = target or {"kind": patch["kind"], "name": name_of(patch)}
    places = [index for index, each in enumerate(objects) if _matches(each, wanted)]
    # Only a patch with a target may match no object.
    if not places and target is None:
        raise UserError(f"{folder}: the patch of {wanted} finds no object")
    if isinstance(patch, dict) and patch.get("$patch") == "delete":
        objects[:] = [each for index, each in enumerate(objects) if index not in places]
        return
    for index in places:
        try:
            if isinstance(patch, dict):
                objects[index] = merge_patch(objects[index], patch)
            else:
                jsonpatch.apply_patch(objects[index], deepcopy(patch), in_place=True)
        except jsonpatch.JsonPatchException as error:
            raise UserError(f"{folder}: the patch of {target} does not fit: {error}") from None


def _matches(manifest: Object, target: Object) -> bool:
    return (
        re.fullmatch(target.get("kind", ".*"), manifest["kind"]) is not None
        and re.fullmatch(target.get("name", ".*"), name_of(manifest)) is not None
        and target.get("labelSelector") in (None, *part(manifest, "metadata", "labels"))
    )


def _label(manifest: Object, pairs: Object, fields: list[str]) -> None:
    """Add labels to the object and to the label mappings in `fields`, if the object has them."""
    manifest["metadata"]["labels"] = {**part(manifest, "metadata", "labels"), **pairs}
    for field in fields:
        *above, name = field.split("/")
        owners: list[Any] = [manifest]
        for step in above:
            owners = [owner.get(step.removesuffix("[]")) for owner in owners if isinstance(owner, dict)]
            owners = [each for owner in owners if owner for each in (owner if step.endswith("[]") else [owner])]
        for owner in owners:
            owner[name] = {**part(owner, name), **pairs}


# Cached, because a controller builds the same files repeatedly.
_parsed = lru_cache(maxsize=128)(documents)


def _documents(path: Path) -> list[Any]:
    return deepcopy(_parsed(_text(path), path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
