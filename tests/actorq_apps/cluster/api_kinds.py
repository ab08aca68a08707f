"""Kinds and paths of the Kubernetes API for test servers."""

from typing import Any, NamedTuple
from urllib.parse import unquote

Object = dict[str, Any]

# Group and version: kind, plural, whether it belongs to a namespace.
Kinds = dict[str, list[tuple[str, str, bool]]]


def namespaced(kinds: str) -> list[tuple[str, str, bool]]:
    return [(kind, f"{kind.lower()}s", True) for kind in kinds.split()]


KINDS: Kinds = {
    "v1": [
        *namespaced("Pod Service ConfigMap Event PersistentVolumeClaim Secret ServiceAccount"),
        ("Namespace", "namespaces", False),
    ],
    "apps/v1": namespaced("StatefulSet Deployment ReplicaSet"),
    "policy/v1": namespaced("PodDisruptionBudget"),
    "networking.k8s.io/v1": [("NetworkPolicy", "networkpolicies", True)],
    "coordination.k8s.io/v1": namespaced("Lease"),
    "actorq.dev/v1alpha1": namespaced("TrainingRun"),
    "scheduling.k8s.io/v1": [("PriorityClass", "priorityclasses", False)],
}
# Kinds with a status and a scale.
_SCALED = ("StatefulSet", "Deployment", "TrainingRun")


class Place(NamedTuple):
    """The parts of an API path: /api/v1 or /apis/GROUP/VERSION, namespaces/NAMESPACE, PLURAL, NAME, subresource."""

    api_version: str
    namespace: str
    plural: str
    name: str
    part: str

    def lists(self, other: "Place") -> bool:
        """Whether this is a list that contains the other object."""
        same = (self.api_version, self.plural) == (other.api_version, other.plural)
        return same and self.namespace in ("", other.namespace)


def place_of(path: str) -> Place:
    parts = unquote(path).strip("/").split("/")
    at = 3 if parts[0] == "apis" else 2
    rest = parts[at:]
    namespace = rest[1] if rest[:1] == ["namespaces"] and len(rest) > 2 else ""
    plural, name, part = [*(rest[2:] if namespace else rest), "", "", ""][:3]
    return Place("/".join(parts[1:at]), namespace, plural, name, part)


def list_path(api_version: str, plural: str) -> str:
    """The path of a kind in namespace lab."""
    return f"/{'apis' if '/' in api_version else 'api'}/{api_version}/namespaces/lab/{plural}"


def discovery(path: str, kinds: Kinds) -> Object | None:
    """The answer at a discovery path of the API; None at other paths."""
    if path == "/version":
        return {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
    if path == "/apis":
        groups = []
        for each in kinds:
            if "/" in each:
                name, version = each.split("/")
                offered = {"groupVersion": each, "version": version}
                groups.append({"name": name, "versions": [offered], "preferredVersion": offered})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in kinds:
        return None
    described: Object = {"singularName": "", "verbs": ["get", "list", "patch", "watch"]}
    resources = [
        {**described, "name": f"{plural}{part}", "kind": kind, "namespaced": namespaced}
        for kind, plural, namespaced in kinds[version]
        for part in (("", "/status", "/scale") if kind in _SCALED else ("",))
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
