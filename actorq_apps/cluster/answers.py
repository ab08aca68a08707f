"""Parses responses of a Kubernetes API server: objects of any depth, and refusals as one line with a remedy.

Users choose the depth of the objects that they create. One deep object must not hide the others of a list.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from kubernetes.client.exceptions import ApiException

from actorq.errors import ActorQError, ConflictError, NotFoundError, UnavailableError, UserError
from actorq_apps.cluster.objects import Object

# Levels of lists and mappings to keep in a deeper response. Objects that people write have about ten levels.
LEVELS = 100
# Maximum size of an object's change in a stream. The API server refuses objects of 3 MiB.
_LARGEST_LINE = 2**23

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")
# The API server's text: 'deployments.apps is forbidden: User "ada" cannot create resource "deployments" in API group
# "apps" in the namespace "lab"'. The last part is "at the cluster scope" for objects without a namespace.
_FORBIDDEN = re.compile(
    r'User \\?"(?P<user>[^"\\]*)\\?" cannot (?P<verb>\w+) resource \\?"(?P<resource>[^"\\]*)\\?" in API group '
    r'\\?"(?P<group>[^"\\]*)\\?"(?: in the namespace \\?"(?P<namespace>[^"\\]*)\\?")?'
)
# The end of the WebSocket library's text for a refused connection: headers, then the server's message.
_HANDSHAKE = re.compile(r'-\+-\+- .*"message": ?"(?P<message>(?:[^"\\]|\\+")*)"')
# The second text is for a quota that was created moments ago.
_QUOTA = re.compile("exceeded quota|status unknown for quota")
# The API server's text for a larger volume when the StorageClass lacks `allowVolumeExpansion`.
_NO_GROWTH = re.compile(
    r'persistentvolumeclaims \\?"(?P<name>[^"\\]*)\\?" is forbidden: only dynamically provisioned pvc'
)
# The API server's text for other fields. A StatefulSet allows changes of only a few fields.
_FIXED = "updates to statefulset spec"
_BY_STATUS: dict[int, type[ActorQError]] = {
    **{404: NotFoundError, 409: ConflictError},
    **dict.fromkeys((429, 500, 502, 503, 504), UnavailableError),
}
_NO_NAMESPACE = re.compile(r'namespaces \\?"(?P<name>[^"\\]*)\\?" not found')


def decoded(data: bytes) -> Object:
    """The tree in a JSON response. If it is deeper than LEVELS, deeper parts are null."""
    try:
        tree: Object = json.loads(data)
    except RecursionError:
        deeper = True
    else:
        # Since Python 3.14, json parses more levels than recursive code can process.
        deeper = _is_deeper(tree, LEVELS)
    if deeper:
        tree = json.loads(shallow(data))
    return tree


def _is_deeper(tree: Any, levels: int) -> bool:
    found = [tree]
    for _ in range(levels + 1):
        found = [each for each in found if isinstance(each, dict | list)]
        found = [inner for each in found for inner in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, dict | list) for each in found)


def shallow(data: bytes, levels: int = LEVELS) -> bytes:
    """JSON with null in place of each list and mapping below `levels`."""
    kept: list[bytes] = []
    level = begin = 0
    for found in _TOKEN.finditer(data):
        if found[0] in _OPENING:
            level += 1
            if level == levels + 1:
                kept += [data[begin : found.start()], b"null"]
        elif found[0] in _CLOSING:
            if level == levels + 1:
                begin = found.end()
            level -= 1
    return b"".join([*kept, data[begin:]])


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The nonempty lines of a stream. Ends at a line that is longer than any object."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)
        if len(rest) > _LARGEST_LINE:
            return


class QuotaError(UserError):
    """A quota of the namespace is used up. The same call may succeed later."""


class ForbiddenError(UserError):
    """The API server does not allow a request.

    user: the requesting user, such as system:serviceaccount:NAMESPACE:NAME. namespace: the request's namespace; empty
        for the whole cluster.
    denied: the refused action, as a clause.
    """

    def __init__(self, denied: str, remedy: str, user: str, namespace: str) -> None:
        super().__init__(f"{denied}; {remedy}")
        self.denied = denied
        self.user = user
        self.namespace = namespace


def explained(error: ApiException, doing: str) -> ActorQError:
    """The error for a refused request. `doing` names the attempt, such as "apply Service learner"."""
    text = _text(error)
    if (forbidden := _FORBIDDEN.search(text)) is not None:
        return _permission(forbidden)
    if (missing := _NO_NAMESPACE.search(text)) is not None:
        name = missing["name"]
        return UserError(
            f"namespace {name} does not exist: make it with `kubectl create namespace {name}`, or name another with -n"
        )
    if (fixed := _NO_GROWTH.search(text)) is not None:
        return UserError(
            f"volume {fixed['name']} cannot grow: its StorageClass does not allow that (allowVolumeExpansion); set the "
            "volume's current size in the overlay, or ask for a StorageClass that allows it"
        )
    match error.status:
        case 401:
            return UserError("the cluster does not accept your credentials: log in again, or check the current context")
        case 403:
            return (QuotaError if _QUOTA.search(text) else UserError)(f"the cluster refuses to {doing}: {text}")
        case 400 | 422:
            hint = "; set them back, or `kubectl delete statefulset NAME --cascade=orphan` and apply again: pods stay"
            return UserError(f"the cluster refuses to {doing}: {text}{hint if _FIXED in text else ''}")
    return _BY_STATUS.get(error.status, ActorQError)(f"cannot {doing}: {text}")


def _permission(forbidden: re.Match[str]) -> ForbiddenError:
    group, namespace = forbidden["group"], forbidden["namespace"]
    resource = f"{forbidden['resource']}.{group}" if group else forbidden["resource"]
    where, role = (f"in namespace {namespace}", "Role") if namespace else ("in the cluster", "ClusterRole")
    denied = f"no permission: {forbidden['user']} may not {forbidden['verb']} {resource} {where}"
    remedy = f"ask for a {role} with the verb {forbidden['verb']} on {resource}"
    return ForbiddenError(denied, remedy, forbidden["user"], namespace or "")


def _text(error: ApiException) -> str:
    """The server's message, or the raw text if a WebSocket was refused."""
    body = error.body or ""
    if isinstance(body, bytes):
        body = body.decode("utf-8", "replace")
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        message = body or error.reason or f"status {error.status}"
    if (answer := _HANDSHAKE.search(message)) is not None:
        message = answer["message"].replace('\\"', '"')
    return " ".join(message.split())
