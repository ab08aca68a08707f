"""A Kubernetes API server for tests of `actorq cluster` and of the operator: real HTTP, objects in memory.

It maintains uids, resource versions and generations, and reports conflicts. Deleting an object deletes its dependents.
It supports the subresources status and scale, logs, and forwarded ports.
"""

import json
import queue
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from actorq_apps.cluster.connection import Cluster
from tests.actorq_apps.cluster.api_kinds import KINDS, Place, discovery, list_path, place_of

Object = dict[str, Any]

USER = "ada"


class ClusterApi(ThreadingHTTPServer):
    """Objects by path, and all writes in order: verb, kind and name.

    `forbidden` holds (verb, plural) pairs. So does `allowed`, unless everything is allowed. `refuse` returns a status
    and a message for a request, or None.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Object] = {}
        self.kinds = dict(KINDS)
        self.logs: dict[str, str] = {}
        # Logs of containers before their restart.
        self.previous_logs: dict[str, str] = {}
        self.forbidden: set[tuple[str, str]] = set()
        self.allowed: set[tuple[str, str]] | None = None
        self.refuse: Callable[[str, str, str], tuple[int, str] | None] = lambda verb, kind, name: None
        # Number of bytes missing at the end of each answer.
        self.cut_bytes = 0
        self.namespaces = {"lab"}
        # A pod's answer to a piece of data from a forwarded port; None closes the connection.
        self.answer: Callable[[bytes], bytes | None] | None = None
        # Objects that end slowly: they exist until somebody has waited for a change.
        self.ending: set[str] = set()
        self.writes: list[tuple[str, str, str]] = []
        # The content of the next change streams, one after the other; later streams are empty. Also the versions at
        # which the streams were asked to begin.
        self.streams: list[bytes] = []
        # Texts of answers, and their replacements.
        self.replaced: dict[bytes, bytes] = {}
        self.awaited: queue.Queue[str] = queue.Queue()
        self._version = 0

    @property
    def changes(self) -> list[tuple[str, str]]:
        """The changes that `actorq cluster` made, by name: apply or delete."""
        return [("delete" if verb == "delete" else "apply", name) for verb, _, name in self.writes]

    def add(self, api_version: str, plural: str, manifest: Object) -> None:
        """Put an object into namespace lab, unchanged."""
        self.objects[f"{list_path(api_version, plural)}/{manifest['metadata']['name']}"] = manifest

    def keep(self, path: str, manifest: Object) -> Object:
        """Create or replace an object, with the metadata that a server adds."""
        before = self.objects.get(path, {})
        new = deepcopy(manifest)
        if "status" in before:
            new.setdefault("status", before["status"])
        old: Object = before.get("metadata", {})
        self._version += 1
        new["metadata"] |= {
            "uid": old.get("uid", f"uid-{self._version}"),
            "generation": old.get("generation", 0) + (not before or before.get("spec") != new.get("spec")),
            "resourceVersion": str(self._version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        if namespace := place_of(path).namespace:
            new["metadata"]["namespace"] = namespace
        self.objects[path] = new
        return new

    def remove(self, path: str) -> None:
        """Delete an object and its dependents."""
        uid = self.objects.pop(path)["metadata"].get("uid", path)
        for other, each in list(self.objects.items()):
            if other in self.objects and any(owner.get("uid") == uid for owner in _owners(each)):
                self.remove(other)

    def immutable(self, before: Object, after: Object) -> str:
        """Why an object cannot be changed; empty if it can."""
        return ""

    def names(self, plural: str) -> set[str]:
        """Names of the objects of a kind."""
        return {place.name for place in map(place_of, self.objects) if place.plural == plural}

    def cluster(self, namespace: str = "lab", run: str = "") -> Cluster:
        """A connection to this server."""
        return Cluster(client.Configuration(host=f"http://127.0.0.1:{self.server_address[1]}"), namespace, run=run)


class _Handler(BaseHTTPRequestHandler):
    server: ClusterApi
    protocol_version = "HTTP/1.1"
    # Otherwise the second packet of an answer would wait for the acknowledgement of the first.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if (discovered := discovery(url.path, self.server.kinds)) is not None:
            return self._answer(200, discovered)
        place = place_of(url.path)
        verb = "watch" if "watch" in query else "get" if place.name else "list"
        if self._is_refused(place, verb):
            return None
        if place.part == "portforward" and self.server.answer is not None:
            return self._forward(int(query["ports"][0]), self.server.answer)
        if place.part == "log":
            logs = self.server.previous_logs if query.get("previous") == ["true"] else self.server.logs
            if place.name not in logs:
                return self._fail(
                    400, f'container "service" in pod "{place.name}" is waiting to start: image can\'t be pulled'
                )
            pod = self.server.objects.get(url.path.removesuffix("/log"), {})
            names = [each["name"] for each in pod.get("spec", {}).get("containers", ())]
            if len(names) > 1 and "container" not in query:
                return self._fail(
                    400, f"a container name must be specified for pod {place.name}, choose one of: {names}"
                )
            limit = int(query["limitBytes"][0]) if "limitBytes" in query else None
            return self._send(200, logs[place.name].encode()[:limit], "text/plain")
        if verb == "watch":
            # Changes here happen before the answer.
            for path in self.server.ending:
                self.server.objects.pop(path, None)
            self.server.ending.clear()
            self.server.awaited.put(query.get("resourceVersion", [""])[0])
            stream = self.server.streams.pop(0) if self.server.streams else b""
            return self._send(200, stream, "application/json")
        if verb == "list":
            return self._answer(200, self._list(place, query.get("labelSelector", [""])[0]))
        found = self.server.objects.get(url.path.removesuffix("/scale"))
        if found is None:
            return self._fail(404, f'"{url.path.rpartition("/")[2]}" not found')
        if place.part == "scale":
            scale = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": found["metadata"]}
            return self._answer(200, {**scale, "spec": {"replicas": _scaled(found)["replicas"]}})
        return self._answer(200, found)

    def do_POST(self) -> None:
        body = self._body()
        path, name = urlsplit(self.path).path, body["metadata"]["name"]
        place = place_of(f"{path}/{name}")
        if self._is_refused(place, "create") or self._is_elsewhere(place, body):
            return None
        if f"{path}/{name}" in self.server.objects:
            return self._fail(409, f'"{name}" already exists')
        return self._keep(f"{path}/{name}", "create", body)

    def do_PATCH(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        place = place_of(url.path)
        is_apply = "apply" in self.headers["Content-Type"]
        doing = "apply" if is_apply else f"patch {place.part}".strip()
        if self._is_refused(place, "patch", doing) or self._is_elsewhere(place, body):
            return None
        path = url.path.removesuffix(f"/{place.part}") if place.part else url.path
        before = self.server.objects.get(path)
        if is_apply and before is not None and (said := self.server.immutable(before, body)):
            return self._fail(422, f'{before["kind"]} "{place.name}" is invalid: {said}')
        if is_apply:
            return self._answer(200, body) if "dryRun" in parse_qs(url.query) else self._keep(path, "apply", body)
        if before is None:
            return self._fail(404, f'"{place.name}" not found')
        version = body.get("metadata", {}).pop("resourceVersion", None)
        if version not in (None, before["metadata"].get("resourceVersion")):
            return self._fail(409, f'"{place.name}": the object has been modified')
        if place.part == "scale":
            _scaled(before)["replicas"] = body["spec"]["replicas"]
            return self._answer(200, {**body, "metadata": before["metadata"], "kind": "Scale"})
        change = {place.part: body[place.part]} if place.part else body
        return self._keep(path, f"patch {place.part}".strip(), _merged(before, change))

    def do_DELETE(self) -> None:
        path = urlsplit(self.path).path
        self._body()
        place = place_of(path)
        if self._is_refused(place, "delete"):
            return None
        if path not in self.server.objects:
            return self._fail(404, f'"{place.name}" not found')
        self.server.writes.append(("delete", self._kind(place), place.name))
        if place.plural == "persistentvolumeclaims":
            self.server.ending.add(path)
        else:
            self.server.remove(path)
        if path.endswith("/statefulsets/learner"):
            self.server.ending |= {each for each in self.server.objects if "/pods/" in each}
        return self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _forward(self, port: int, answer: Callable[[bytes], bytes | None]) -> None:
        """Act as a pod's port, with the channels of the API server's WebSocket: 0 for data, 1 for errors."""
        digest = sha1((self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
            self.send_header(name, value)
        self.send_header("Sec-WebSocket-Accept", b64encode(digest).decode())
        self.end_headers()
        for channel in (b"\0", b"\1"):
            self._send_frame(channel + port.to_bytes(2, "little"))
        while (data := self._read_frame()) is not None and (said := answer(data[1:])) is not None:
            self._send_frame(b"\0" + said)
        self.close_connection = True

    def _send_frame(self, data: bytes) -> None:
        self.wfile.write(b"\x82\x7f" + len(data).to_bytes(8, "big") + data)
        self.wfile.flush()

    def _read_frame(self) -> bytes | None:
        head = self.rfile.read(2)
        if len(head) < 2 or head[0] & 0x0F != 2:
            return None
        extended = {126: 2, 127: 8}.get(head[1] & 0x7F, 0)
        size = int.from_bytes(self.rfile.read(extended), "big") if extended else head[1] & 0x7F
        mask = self.rfile.read(4)
        return bytes(byte ^ mask[index % 4] for index, byte in enumerate(self.rfile.read(size)))

    def _keep(self, path: str, verb: str, body: Object) -> None:
        place = place_of(path)
        self.server.writes.append((verb, self._kind(place), place.name))
        self._answer(200, self.server.keep(path, body))

    def _list(self, place: Place, selector: str) -> Object:
        # With a value, or for any value.
        wanted = [part.partition("=") for part in selector.split(",") if part]
        items = [
            # As from a real server, items of a list lack these.
            {key: value for key, value in each.items() if key not in ("kind", "apiVersion")}
            for path, each in list(self.server.objects.items())
            if place.lists(place_of(path))
            and all(_has(each["metadata"].get("labels") or {}, name, value) for name, _, value in wanted)
        ]
        found = {"kind": f"{self._kind(place)}List", "apiVersion": place.api_version, "items": items}
        return {**found, "metadata": {"resourceVersion": "1"}}

    def _kind(self, place: Place) -> str:
        kinds = self.server.kinds.get(place.api_version, ())
        return next((kind for kind, plural, _ in kinds if plural == place.plural), "")

    def _is_refused(self, place: Place, verb: str, doing: str = "") -> bool:
        server, namespace = self.server, place.namespace
        plural = f"{place.plural}/{place.part}" if place.part else place.plural
        if (said := server.refuse(doing or verb, self._kind(place), place.name)) is not None:
            self._fail(*said)
        elif (verb, plural) in server.forbidden or (
            server.allowed is not None and (verb, plural) not in server.allowed
        ):
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            group = place.api_version.rpartition("/")[0]
            refusal = f'User "{USER}" cannot {verb} resource "{plural}" in API group "{group}" {where}'
            self._fail(403, f"{plural} is forbidden: {refusal}")
        elif namespace and namespace not in server.namespaces:
            self._fail(404, f'namespaces "{namespace}" not found')
        else:
            return False
        return True

    def _is_elsewhere(self, place: Place, body: Object) -> bool:
        """Whether the body names another namespace than the path. If so, also answers the request."""
        if body.get("metadata", {}).get("namespace", place.namespace) == place.namespace:
            return False
        self._fail(400, "the namespace of the provided object does not match the namespace sent on the request")
        return True

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def _fail(self, status: int, message: str) -> None:
        self._answer(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message})

    def _answer(self, status: int, tree: Object) -> None:
        data = json.dumps(tree).encode()
        for text, other in self.server.replaced.items():
            data = data.replace(text, other)
        self._send(status, data, "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) + self.server.cut_bytes))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = bool(self.server.cut_bytes)


def _has(labels: Object, name: str, value: str) -> bool:
    return name in labels and value in ("", labels[name])


def _owners(manifest: Object) -> list[Object]:
    found: list[Object] = manifest["metadata"].get("ownerReferences", [])
    return found


def _merged(before: Any, change: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(change, dict):
        return change
    old = before if isinstance(before, dict) else {}
    new = {**old, **{key: _merged(old.get(key), value) for key, value in change.items()}}
    return {key: value for key, value in new.items() if value is not None}


def _scaled(found: Object) -> Object:
    """The part of an object with the number of pods, as in its scale subresource."""
    return found["spec"]["actors"] if found["kind"] == "TrainingRun" else found["spec"]  # type: ignore[no-any-return]


A = TypeVar("A", bound=ClusterApi)


@contextmanager
def serving(api: A) -> Iterator[A]:
    """Serve during the block."""
    with api:
        thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


def cluster_api() -> AbstractContextManager[ClusterApi]:
    """A server during the block."""
    return serving(ClusterApi())
