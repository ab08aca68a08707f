"""The list of objects that `up` created in a namespace, in a ConfigMap there.

It keeps a second run out of the namespace, and tells `down` which objects to remove.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from actorq.cluster.connection import Cluster
from actorq.cluster.objects import RUN_LABEL, Object
from actorq.errors import ConflictError, UserError

_NAME = "actorq-run"


@dataclass(frozen=True, order=True)
class Reference:
    """One object of the run's namespace."""

    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, manifest: Object) -> "Reference":
        """The reference of a manifest's object."""
        return cls(manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"])


@dataclass(frozen=True)
class Inventory:
    """A run's name and its objects, in the order of their creation."""

    name: str
    objects: tuple[Reference, ...]

    def extended(self, objects: Iterable[Reference]) -> "Inventory":
        """The inventory with more objects at its end. Known objects keep their places."""
        return Inventory(self.name, tuple(dict.fromkeys((*self.objects, *objects))))


def read(cluster: Cluster) -> Inventory | None:
    """The inventory of the namespace; None when there is none. Raises UserError when it is malformed."""
    found = cluster.get("v1", "ConfigMap", _NAME)
    if found is None:
        return None
    try:
        data = found["data"]
        return Inventory(str(data["run"]), tuple(Reference(*each) for each in json.loads(data["objects"])))
    except (KeyError, ValueError, TypeError):
        raise UserError(
            f"ConfigMap {_NAME} in namespace {cluster.namespace} is not what `actorq cluster up` wrote: delete it, and "
            f"what has the label {RUN_LABEL}, with kubectl"
        ) from None


def claim(cluster: Cluster, inventory: Inventory) -> None:
    """Write the first inventory of a namespace. If two runs try at once, only one succeeds."""
    try:
        cluster.create(_manifest(inventory))
    except ConflictError:
        raise UserError(f"namespace {cluster.namespace} has just got another run: choose another with -n") from None


def write(cluster: Cluster, inventory: Inventory) -> None:
    """Replace the inventory."""
    cluster.apply(_manifest(inventory))


def erase(cluster: Cluster) -> None:
    """Remove the inventory: the namespace has no run anymore."""
    cluster.delete("v1", "ConfigMap", _NAME)


def _manifest(inventory: Inventory) -> Object:
    objects = [[each.api_version, each.kind, each.name] for each in inventory.objects]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _NAME, "labels": {RUN_LABEL: inventory.name}},
        "data": {"run": inventory.name, "objects": json.dumps(objects)},
    }
