"""Labels of a run's objects, and ways into their trees."""

from typing import Any

Object = dict[str, Any]

RUN_LABEL = "actorq/run"
COMPONENT_LABEL = "app.kubernetes.io/component"
ACTORQ = "app.kubernetes.io/name=actorq"
WORKLOADS = ("StatefulSet", "Deployment", "DaemonSet", "Job", "CronJob")


def part(tree: object, *path: str) -> Object:
    """A tree in a tree; an empty one where there is none: the API server tells what is wrong with an object."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def items(tree: object, name: str) -> list[Object]:
    """The trees of a list in a tree."""
    found = tree.get(name) if isinstance(tree, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def name_of(manifest: Object) -> str:
    """The name of an object."""
    return str(manifest["metadata"]["name"])
