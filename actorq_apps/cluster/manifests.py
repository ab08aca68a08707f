"""Reads the objects of a run from a kustomize overlay or a file, and prepares them under the run's name."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actorq.errors import UserError
from actorq_apps.cluster import configuration
from actorq_apps.cluster.objects import COMPONENT_LABEL, RUN_LABEL, WORKLOADS, Object, claims, documents, name_of, part

_RENDER_TIMEOUT_S = 60
# Newer versions of kubectl log errors as: E1120 14:35:03.129553 11686 run.go:72] "command failed" err="..."
_KUBECTL_LOG = re.compile(r'^E\d{4} .*\berr="(?P<error>.*)"$')
# Required parts of a run: the component of its pods, and the kind of their workload.
_REQUIRED = {"learner": "StatefulSet", "quantizer": "Deployment", "actor": "Deployment"}
# The namespace in the addresses of k8s/. Manifest fields cannot refer to the actual namespace.
_WRITTEN_NAMESPACE = "actorq"


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
    """The objects in a stream of YAML documents. Raises UserError unless they form a run."""
    found = documents(text, source)
    for document in found:
        tree, metadata = part(document), part(document, "metadata")
        texts = (tree.get("apiVersion"), tree.get("kind"), metadata.get("name"), metadata.get("namespace") or "")
        if not all(isinstance(each, str) for each in texts):
            raise UserError(f"{source}: expected objects with apiVersion, kind and metadata.name, got {document!r:.60}")
    for component, kind in _REQUIRED.items():
        if not any(each["kind"] == kind and component_of(each) == component for each in found):
            raise UserError(
                f"{source} is no overlay of a run: it has no {kind} with pods of {COMPONENT_LABEL}={component}"
            )
    return found


def component_of(manifest: Object) -> str:
    """The component of a workload's pods: learner, quantizer, actor or evaluator."""
    labels = part(manifest, "spec", "template", "metadata", "labels")
    return str(labels.get(COMPONENT_LABEL, ""))


def default_name(source: str) -> str:
    """The default name of a run: the name of its overlay's folder or file."""
    path = Path(source)
    name = "run" if source == "-" else path.resolve().name if path.is_dir() else path.stem
    return name.lower().replace("_", "-").replace(".", "-")


def namespace_of(manifests: Sequence[Object], given: str | None) -> str | None:
    """The given namespace, or the overlay's; None for neither. Raises UserError when they differ."""
    names = sorted({*(each["metadata"].get("namespace") for each in manifests), given} - {None, ""})
    if len(names) > 1:
        raise UserError(
            f"a run lives in one namespace, but the overlay and -n name {', '.join(names)}: set `namespace` in the "
            "overlay's kustomization.yaml"
        )
    return names[0] if names else None


def prepared(manifests: Sequence[Object], name: str, namespace: str) -> list[Object]:
    """The objects in the order of application, with the run's label, and with addresses in the namespace."""
    services = "|".join(re.escape(name_of(each)) for each in manifests if each["kind"] == "Service")
    # An address such as learner.actorq, learner.actorq:50051 or learner.actorq.svc.cluster.local.
    end = r"(?=(?:\.svc(?:\.cluster\.local)?)?(?![\w.-]))"
    address = re.compile(rf"(?<![\w-])({services or '(?!)'})\.{_WRITTEN_NAMESPACE}{end}")
    ready = []
    for each in manifests:
        manifest = dict(each) if each["kind"] in ("ConfigMap", "Secret") else _moved(each, address, namespace)
        metadata = part(manifest, "metadata")
        manifest["metadata"] = {**metadata, "labels": {**part(metadata, "labels"), RUN_LABEL: name}}
        ready += [*claims(manifest, name), manifest]
    configuration.stamp(ready)
    # Pods depend on the other objects.
    return sorted(ready, key=lambda manifest: manifest["kind"] in WORKLOADS)


def _moved(tree: Any, address: re.Pattern[str], namespace: str) -> Any:
    if isinstance(tree, dict):
        return {key: _moved(value, address, namespace) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_moved(each, address, namespace) for each in tree]
    return address.sub(rf"\1.{namespace}", tree) if isinstance(tree, str) else tree


def _kustomize(folder: Path) -> str:
    command = ["kubectl", "kustomize", str(folder)]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=_RENDER_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise UserError(
            "kubectl is needed to render an overlay and is not on the PATH: install it, or give a rendered YAML file"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"overlay {folder}: kubectl kustomize took more than {_RENDER_TIMEOUT_S} s") from None
    if completed.returncode:
        reason = (completed.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("error: ")
        if (logged := _KUBECTL_LOG.search(reason)) is not None:
            reason = logged["error"].replace('\\"', '"')
        raise UserError(f"overlay {folder} cannot be rendered: {reason}")
    return completed.stdout
