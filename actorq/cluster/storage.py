"""The volumes of a run, which carry the run's name."""

from collections.abc import Iterator
from copy import deepcopy

from actorq.cluster.objects import RUN_LABEL, Object, items, name_of, part

VOLUME = "PersistentVolumeClaim"


def claims(manifest: Object, name: str) -> Iterator[Object]:
    """The volume claims of a StatefulSet's first pod, labeled with the run's name.

    The label cannot be in the StatefulSet's own template of the claim. Kubernetes never changes such a template, so
    `kubectl apply -k` would fail on the difference. The StatefulSet uses an existing claim of that name.
    """
    if manifest["kind"] != "StatefulSet":
        return
    selected = part(manifest, "spec", "selector", "matchLabels")
    for template in items(part(manifest, "spec"), "volumeClaimTemplates"):
        metadata = part(template, "metadata")
        yield {
            "apiVersion": "v1",
            "kind": VOLUME,
            "metadata": {
                "name": f"{metadata.get('name')}-{name_of(manifest)}-0",
                "labels": {**part(metadata, "labels"), **selected, RUN_LABEL: name},
            },
            "spec": deepcopy(part(template, "spec")),
        }
