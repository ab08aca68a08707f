"""The objects of a run from a kustomize overlay or a file, prepared to be applied under the run's name."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from actorq.cluster import configuration, storage
from actorq.cluster.objects import COMPONENT_LABEL, RUN_LABEL, WORKLOADS, Object, items, part
from actorq.errors import UserError

_NAMESPACE_NAME = "kubernetes.io/metadata.name"

_KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RENDER_TIMEOUT_S = 60
# Newer versions of kubectl log errors as: E1120 14:35:03.129553 11686 run.go:72] "command failed" err="..."
_KUBECTL_LOG = re.compile(r'^E\d{4} .*\berr="(?P<error>.*)"$')
# Required parts of a run: the component of its pods, and the kind of their workload.
_REQUIRED = {"learner": "StatefulSet", "quantizer": "Deployment", "actor": "Deployment"}
# These kinds are applied first, because others refer to them. The rest follows in the overlay's order.
_FIRST = (
    "Namespace", "PriorityClass", "ResourceQuota", "LimitRange", "ServiceAccount", "Role", "RoleBinding",
    "NetworkPolicy", "Issuer", "Certificate", "Secret", "ConfigMap", "PersistentVolumeClaim", "Service",
)  # fmt: skip
# The namespace in the addresses of k8s/. Fields there cannot refer to the actual namespace.
_WRITTEN_NAMESPACE = "actorq"

_TWO_AUTOSCALERS = (
    "overlay {} has two autoscalers of its actors, components/hpa and components/keda: leave one of them out"
)
# Both components remove the number of actors. For the second one it is missing, and kubectl reports only that.
_NO_NUMBER_LEFT = re.compile(r"components/(hpa|keda)\b.*/spec/replicas\b")


def render(source: str) -> list[Object]:
    """The objects of an overlay's folder, a rendered YAML file, or "-" for standard input. Raises UserError."""
    if source == "-":
        return parse(sys.stdin.read(), "standard input")
    path = Path(source)
    if path.is_dir():
        return parse(_kustomize(path), source)
    try:
        return parse(path.read_text(encoding="utf-8"), source)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"overlay {source} cannot be read ({getattr(error, 'strerror', None) or error})") from None


def parse(text: str, source: str) -> list[Object]:
    """The objects of a stream of YAML documents. Raises UserError unless they are those of a run."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    for document in documents:
        if not _is_object(document):
            raise UserError(f"{source}: expected objects with apiVersion, kind and metadata.name, got {document!r:.60}")
    for component, kind in _REQUIRED.items():
        if not any(each["kind"] == kind and component_of(each) == component for each in documents):
            raise UserError(
                f"{source} is no overlay of a run: it has no {kind} with pods of {COMPONENT_LABEL}={component}"
            )
    if {"HorizontalPodAutoscaler", "ScaledObject"} <= {each["kind"] for each in documents if _scales_actors(each)}:
        raise UserError(_TWO_AUTOSCALERS.format(source))
    return documents


def component_of(manifest: Object) -> str:
    """The component of a workload's pods: learner, quantizer, actor or evaluator."""
    labels = part(manifest, "spec", "template", "metadata", "labels")
    return str(labels.get(COMPONENT_LABEL, ""))


def default_name(source: str) -> str:
    """The default name of a run: that of its overlay's folder or file."""
    path = Path(source)
    name = "run" if source == "-" else path.resolve().name if path.is_dir() else path.stem
    return check_name(name.lower().replace("_", "-").replace(".", "-"))


def check_name(name: str) -> str:
    """The name, if it is a valid value of a label. Raises UserError otherwise."""
    if not _NAME.fullmatch(name):
        raise UserError(f"--name: expected up to 63 of a-z, 0-9 and inner dashes, got {name!r}")
    return name


def namespace_of(manifests: Sequence[Object]) -> str | None:
    """The overlay's namespace; None when it sets none. Raises UserError when it has several."""
    names = {manifest["metadata"].get("namespace") for manifest in manifests} - {None}
    if len(names) > 1:
        raise UserError(f"the overlay spreads over namespaces {', '.join(sorted(names))}; a run lives in one")
    return next(iter(names), None)


def prepared(manifests: Sequence[Object], name: str, namespace: str, images: Mapping[str, str]) -> list[Object]:
    """The objects in the order to apply them: labeled with the run's name, moved to the namespace, with other images.

    images: new images by the last part of the old name, such as {"actorq-actor": "registry.example/actorq-actor:2"}.
    Raises UserError for an image that no container uses.
    """
    earlier = namespace_of(manifests) or _WRITTEN_NAMESPACE
    services = [str(manifest["metadata"]["name"]) for manifest in manifests if manifest["kind"] == "Service"]
    address = _addresses(services, {earlier, _WRITTEN_NAMESPACE})
    used: set[str] = set()
    ready = []
    for manifest in deepcopy(list(manifests)):
        _label(manifest, name)
        _move(manifest, earlier, namespace)
        if manifest["kind"] not in ("ConfigMap", "Secret"):
            _move_references(manifest, earlier, namespace)
            _move_addresses(manifest, address, namespace)
        _name_protocols(manifest)
        used |= _set_images(manifest, images)
        ready += [*storage.claims(manifest, name), manifest]
    if unused := sorted(set(images) - used):
        raise UserError(f"--set-image: no container of the overlay uses an image {unused[0]}")
    configuration.stamp(ready)
    return sorted(ready, key=lambda manifest: _rank(manifest["kind"]))


def parse_images(pairs: Sequence[str]) -> dict[str, str]:
    """Parse NAME=IMAGE pairs. Raises UserError."""
    images = {}
    for pair in pairs:
        name, separator, image = pair.partition("=")
        if not (name and separator and image):
            raise UserError(
                f"--set-image: expected NAME=IMAGE, such as actorq-actor=registry/actorq-actor:2, got {pair!r}"
            )
        images[name] = image
    return images


def _kustomize(folder: Path) -> str:
    if not any((folder / name).is_file() for name in _KUSTOMIZATIONS):
        raise UserError(f"overlay {folder} has no kustomization.yaml")
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise UserError(
            "kubectl is needed to render an overlay and is not on the PATH: install it, or give a rendered YAML file"
        )
    try:
        completed = subprocess.run(
            [kubectl, "kustomize", str(folder)],
            capture_output=True,
            text=True,
            timeout=_RENDER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"overlay {folder}: kubectl kustomize took more than {_RENDER_TIMEOUT_S} s") from None
    if completed.returncode:
        reason = (completed.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("error: ")
        if (logged := _KUBECTL_LOG.search(reason)) is not None:
            reason = logged["error"].replace('\\"', '"')
        if _NO_NUMBER_LEFT.search(reason):
            raise UserError(_TWO_AUTOSCALERS.format(folder))
        raise UserError(f"overlay {folder} cannot be rendered: {reason}")
    return completed.stdout


def _scales_actors(manifest: Object) -> bool:
    target = part(manifest, "spec", "scaleTargetRef")
    return target.get("name") == "actor" and target.get("kind", "Deployment") == "Deployment"


def _is_object(document: object) -> bool:
    return (
        isinstance(document, dict)
        and isinstance(document.get("apiVersion"), str)
        and isinstance(document.get("kind"), str)
        and isinstance(document.get("metadata"), dict)
        and isinstance(document["metadata"].get("name"), str)
        and isinstance(document["metadata"].get("namespace") or "", str)
    )


def _label(manifest: Object, name: str) -> None:
    metadata = part(manifest, "metadata")
    manifest["metadata"] = {**metadata, "labels": {**part(metadata, "labels"), RUN_LABEL: name}}


def _move(manifest: Object, earlier: str, namespace: str) -> None:
    if manifest["kind"] == "Namespace":
        if manifest["metadata"]["name"] == earlier:
            manifest["metadata"]["name"] = namespace
        return
    if "namespace" in manifest["metadata"]:
        manifest["metadata"]["namespace"] = namespace
    for subject in items(manifest, "subjects"):
        if subject.get("namespace") == earlier:
            subject["namespace"] = namespace


def _move_references(tree: object, earlier: str, namespace: str) -> None:
    """Change selectors of the namespace by name, in monitors and network policies, to the new namespace."""
    if isinstance(tree, list):
        for each in tree:
            _move_references(each, earlier, namespace)
    if not isinstance(tree, dict):
        return
    selector = part(tree, "namespaceSelector")
    names = selector.get("matchNames")
    if isinstance(names, list) and earlier in names:
        selector["matchNames"] = [namespace if name == earlier else name for name in names]
    labels = part(selector, "matchLabels")
    if labels.get(_NAMESPACE_NAME) == earlier:
        labels[_NAMESPACE_NAME] = namespace
    for each in tree.values():
        _move_references(each, earlier, namespace)


def _addresses(services: Sequence[str], namespaces: Iterable[str]) -> re.Pattern[str]:
    """A pattern of services' names with a namespace, with or without a port, such as learner.actorq.svc:50051."""
    of_services, of_namespaces = ("|".join(map(re.escape, sorted(names))) for names in (services, namespaces))
    end = r"(?=(?:\.svc(?:\.cluster\.local)?)?(?![\w.-]))"
    return re.compile(rf"(?<![\w-])({of_services or '(?!)'})\.(?:{of_namespaces}){end}")


def _move_addresses(tree: object, address: re.Pattern[str], namespace: str) -> None:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list):
        items = enumerate(tree)
    for key, value in list(items):
        if isinstance(value, str):
            tree[key] = address.sub(rf"\1.{namespace}", value)  # type: ignore[index]
        else:
            _move_addresses(value, address, namespace)


def _name_protocols(manifest: Object) -> None:
    """Set each port's protocol. Older API servers need it to identify a port, and refuse to apply without it."""
    owners = [part(manifest, "spec")] if manifest["kind"] == "Service" else _containers(manifest)
    for owner in owners:
        for port in items(owner, "ports"):
            port.setdefault("protocol", "TCP")


def _set_images(manifest: Object, images: Mapping[str, str]) -> set[str]:
    used = set()
    for container in _containers(manifest):
        name = _image_name(str(container.get("image", "")))
        if name in images:
            container["image"] = images[name]
            used.add(name)
    return used


def _containers(manifest: Object) -> list[Object]:
    if manifest["kind"] not in WORKLOADS:
        return []
    pod = part(manifest, "spec", "template", "spec")
    return [*items(pod, "containers"), *items(pod, "initContainers")]


def _image_name(image: str) -> str:
    """registry:5000/team/app:1@sha256:... -> app."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _rank(kind: str) -> int:
    if kind in WORKLOADS:
        return len(_FIRST) + 1
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)
