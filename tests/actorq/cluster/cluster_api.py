"""A Kubernetes API server for tests: real HTTP, objects in memory, the few endpoints that `actorq cluster` uses."""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from actorq.cluster.connection import Cluster
from actorq.config.settings import merge

Object = dict[str, Any]

USER = "ada"
# Group and version: kind, plural, whether it lives in a namespace.
Kinds = dict[str, list[tuple[str, str, bool]]]
KINDS: Kinds = {
    "v1": [
        ("Pod", "pods", True),
        ("Service", "services", True),
        ("ConfigMap", "configmaps", True),
        ("Event", "events", True),
        ("PersistentVolumeClaim", "persistentvolumeclaims", True),
        ("Namespace", "namespaces", False),
    ],
    "apps/v1": [
        ("StatefulSet", "statefulsets", True),
        ("Deployment", "deployments", True),
        ("ReplicaSet", "replicasets", True),
    ],
    "actorq.dev/v1alpha1": [("TrainingRun", "trainingruns", True)],
    "scheduling.k8s.io/v1": [("PriorityClass", "priorityclasses", False)],
}


class ClusterApi(ThreadingHTTPServer):
    """Objects by their path; `forbidden` holds (verb, plural) pairs, `allowed` too unless everything is."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, Object] = {}
        self.kinds = dict(KINDS)
        self.logs: dict[str, str] = {}
        # Those of containers before they were started again.
        self.previous_logs: dict[str, str] = {}
        self.forbidden: set[tuple[str, str]] = set()
        self.allowed: set[tuple[str, str]] | None = None
        self.namespaces = {"lab"}
        # What a pod answers to a piece of data that comes through a forwarded port; None ends the connection.
        self.answer: Callable[[bytes], bytes | None] | None = None
        # What takes its time to end: it is there until somebody has waited for a change.
        self.ending: set[str] = set()
        self.changes: list[tuple[str, str]] = []

    def add(self, api_version: str, plural: str, manifest: Object) -> None:
        """Put an object into namespace lab."""
        prefix = "/api" if api_version == "v1" else "/apis"
        self.objects[f"{prefix}/{api_version}/namespaces/lab/{plural}/{manifest['metadata']['name']}"] = manifest

    def names(self, plural: str) -> set[str]:
        """Names of the objects of a kind."""
        return {path.rpartition("/")[2] for path in self.objects if path.split("/")[-2] == plural}

    def cluster(self, namespace: str = "lab") -> Cluster:
        """A connection to it."""
        return Cluster(client.Configuration(host=f"http://127.0.0.1:{self.server_address[1]}"), namespace)


class _Handler(BaseHTTPRequestHandler):
    server: ClusterApi

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if (discovered := _discovery(url.path, self.server.kinds)) is not None:
            return self._answer(200, discovered)
        if self._is_refused(url.path, "watch" if "watch" in query else "get"):
            return None
        if url.path.endswith("/portforward") and self.server.answer is not None:
            return self._forward(int(query["ports"][0]), self.server.answer)
        if url.path.endswith("/log"):
            name = url.path.split("/")[-2]
            logs = self.server.previous_logs if query.get("previous") == ["true"] else self.server.logs
            if name not in logs:
                return self._fail(
                    400, f'container "service" in pod "{name}" is waiting to start: image can\'t be pulled'
                )
            return self._send(200, logs[name].encode(), "text/plain")
        if "watch" in query:
            # What changes here has changed before the answer.
            for path in self.server.ending:
                self.server.objects.pop(path, None)
            self.server.ending.clear()
            return self._send(200, b"", "application/json")
        if url.path.endswith("/scale"):
            found = self.server.objects.get(url.path.removesuffix("/scale"))
            if found is None:
                return self._fail(404, f'"{url.path.split("/")[-2]}" not found')
            scale = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": found["metadata"]}
            return self._answer(200, {**scale, "spec": {"replicas": _scaled(found)["replicas"]}})
        if url.path in self.server.objects:
            return self._answer(200, self.server.objects[url.path])
        *_, place, last = url.path.split("/")
        if place in self.server.namespaces and any(
            last == each[1] for kinds in self.server.kinds.values() for each in kinds
        ):
            return self._answer(200, self._list(url.path, query.get("labelSelector", [""])[0]))
        return self._fail(404, f'"{url.path.rpartition("/")[2]}" not found')

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        body = self._body()
        if self._is_refused(url.path, "create"):
            return None
        path = f"{url.path}/{body['metadata']['name']}"
        if path in self.server.objects:
            return self._fail(409, f'"{body["metadata"]["name"]}" already exists')
        return self._keep(path, body, False)

    def do_PATCH(self) -> None:
        url = urlsplit(self.path)
        body = self._body()
        if self._is_refused(url.path, "patch"):
            return None
        if url.path.endswith("/scale"):
            found = self.server.objects[url.path.removesuffix("/scale")]
            _scaled(found)["replicas"] = body["spec"]["replicas"]
            return self._answer(200, {**body, "metadata": found["metadata"], "kind": "Scale"})
        return self._keep(url.path, body, "dryRun" in parse_qs(url.query))

    def do_DELETE(self) -> None:
        path = urlsplit(self.path).path
        self._body()
        if self._is_refused(path, "delete"):
            return None
        if path not in self.server.objects:
            return self._fail(404, f'"{path.rpartition("/")[2]}" not found')
        self.server.changes.append(("delete", path.rpartition("/")[2]))
        if "/persistentvolumeclaims/" in path:
            self.server.ending.add(path)
        else:
            del self.server.objects[path]
        if path.endswith("/statefulsets/learner"):
            self.server.ending |= {each for each in self.server.objects if "/pods/" in each}
        return self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _forward(self, port: int, answer: Callable[[bytes], bytes | None]) -> None:
        """Be a pod's port, by the channels of the API server's WebSocket: 0 has the data, 1 what went wrong."""
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

    def _read_frame(self) -> bytes | None:
        head = self.rfile.read(2)
        if len(head) < 2 or head[0] & 0x0F != 2:
            return None
        extended = {126: 2, 127: 8}.get(head[1] & 0x7F, 0)
        size = int.from_bytes(self.rfile.read(extended), "big") if extended else head[1] & 0x7F
        mask = self.rfile.read(4)
        return bytes(byte ^ mask[index % 4] for index, byte in enumerate(self.rfile.read(size)))

    def _keep(self, path: str, body: Object, dry_run: bool) -> None:
        before = self.server.objects.get(path, {})
        if "merge-patch" in self.headers["Content-Type"]:
            change, body = body, dict(before)
            merge(body, change)
        elif "status" in before:
            body = {**body, "status": before["status"]}
        if not dry_run:
            self.server.objects[path] = body
            self.server.changes.append(("apply", path.rpartition("/")[2]))
        self._answer(200, body)

    def _list(self, path: str, selector: str) -> Object:
        # With a value, or for any value.
        wanted = [part.partition("=") for part in selector.split(",") if part]
        items = [
            each
            for key, each in self.server.objects.items()
            if key.rpartition("/")[0] == path
            and all(_has(each["metadata"].get("labels") or {}, name, value) for name, _, value in wanted)
        ]
        return {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def _is_refused(self, path: str, verb: str) -> bool:
        # /api/v1 or /apis/GROUP/VERSION, then namespaces/NAMESPACE where there is one, PLURAL, NAME, and a part.
        parts = path.split("/")
        group, rest = (parts[2], parts[4:]) if parts[1] == "apis" else ("", parts[3:])
        namespace = rest[1] if rest[0] == "namespaces" and len(rest) > 2 else ""
        plural, *name = rest[2:] if namespace else rest
        if len(name) == 2:
            plural = f"{plural}/{name[1]}"
        if verb == "get" and not name:
            verb = "list"
        allowed = self.server.allowed
        if (verb, plural) in self.server.forbidden or (allowed is not None and (verb, plural) not in allowed):
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            refusal = f'User "{USER}" cannot {verb} resource "{plural}" in API group "{group}" {where}'
            self._fail(403, f"{plural} is forbidden: {refusal}")
            return True
        if namespace and namespace not in self.server.namespaces:
            self._fail(404, f'namespaces "{namespace}" not found')
            return True
        return False

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def _fail(self, status: int, message: str) -> None:
        self._answer(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message})

    def _answer(self, status: int, tree: Object) -> None:
        self._send(status, json.dumps(tree).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _has(labels: Object, name: str, value: str) -> bool:
    return name in labels and value in ("", labels[name])


def _scaled(found: Object) -> Object:
    """The part of an object with the number of pods that its scale tells."""
    return found["spec"]["actors"] if found["kind"] == "TrainingRun" else found["spec"]  # type: ignore[no-any-return]


def _discovery(path: str, kinds: Kinds) -> Object | None:
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
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in kinds:
        return None
    resources = [
        {"name": plural, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": ["get", "list", "patch"]}
        for kind, plural, namespaced in kinds[version]
    ]
    scaled = {"apps/v1": "deployments", "actorq.dev/v1alpha1": "trainingruns"}.get(version)
    if scaled is not None:
        scale = {"name": f"{scaled}/scale", "kind": "Scale", "group": "autoscaling", "version": "v1"}
        resources.append({**scale, "singularName": "", "namespaced": True, "verbs": ["get", "patch"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


@contextmanager
def cluster_api() -> Iterator[ClusterApi]:
    """Serve for a while."""
    with ClusterApi() as api:
        thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()
