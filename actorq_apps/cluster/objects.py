"""Labels and kinds of a run's objects, access to parts of objects, and a run's volumes."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from actorq.config import settings
from actorq.errors import UserError

Object = dict[str, Any]

RUN_LABEL = "actorq/run"
COMPONENT_LABEL = "app.kubernetes.io/component"
ACTORQ = "app.kubernetes.io/name=actorq"
TRAINING_RUN = ("actorq.dev/v1alpha1", "TrainingRun")
"""API version and kind of the object that the operator turns into a run."""
DIGEST = "actorq/digest"
"""Annotation of all objects that the operator applies, including volumes that outlive their TrainingRun."""
VOLUME = "PersistentVolumeClaim"
WORKLOADS = ("StatefulSet", "Deployment", "DaemonSet", "Job", "CronJob")


def part(tree: object, *path: str) -> Object:
    """A subtree; empty if it is missing. The API server itself reports malformed objects."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def items(tree: object, name: str) -> list[Object]:
    """The items of a list of subtrees."""
    found = tree.get(name) if isinstance(tree, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def name_of(manifest: Object) -> str:
    """The name of an object."""
    return str(manifest["metadata"]["name"])


def run_of(found: Object) -> str:
    """The name of an object's run; empty if it has none."""
    return str(part(found, "metadata", "labels").get(RUN_LABEL, ""))


def documents(text: str, source: object) -> list[Any]:
    """The nonempty documents of a YAML stream. `source` is its name for people. Raises UserError."""
    try:
        return [document for document in settings.documents_from_yaml(text) if document is not None]
    except ValueError as error:
        raise UserError(f"{source} is not YAML: {error}") from None


def claims(manifest: Object, name: str) -> Iterator[Object]:
    """The volume claims of a StatefulSet's first pod, labeled with the run's name.

    The label cannot be in the StatefulSet's own claim template. Kubernetes does not allow changes of such a template,
    so `kubectl apply -k` would fail on the difference. The StatefulSet uses an existing claim with this name.
    """
    if manifest["kind"] != "StatefulSet":
        return
    selected = part(manifest, "spec", "selector", "matchLabels")
    for template in items(part(manifest, "spec"), "volumeClaimTemplates"):
        metadata = part(template, "metadata")
        labels = {**part(metadata, "labels"), **selected, RUN_LABEL: name}
        own = {"name": f"{metadata.get('name')}-{name_of(manifest)}-0", "labels": labels}
        yield {"apiVersion": "v1", "kind": VOLUME, "metadata": own, "spec": deepcopy(part(template, "spec"))}
