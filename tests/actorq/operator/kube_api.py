"""A Kubernetes API server for tests of the operator: real HTTP, objects in memory.

It keeps resource versions, uids and generations, and answers conflicts. What an object owns is deleted with it.
It has the subresource status. `kubelet` makes the pods of workloads.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kubernetes import client

from actorq.cluster.connection import Cluster

Object = dict[str, Any]
NAMESPACE = "lab"
RUNS = "actorq.dev/v1alpha1"
KINDS = {
    "v1": "Pod Service ConfigMap Event PersistentVolumeClaim Secret ServiceAccount",
    "apps/v1": "StatefulSet Deployment",
    "policy/v1": "PodDisruptionBudget",
    "coordination.k8s.io/v1": "Lease",
    RUNS: "TrainingRun",
}
_GENERATED = ("StatefulSet", "Deployment", "TrainingRun")


def plural(kind: str) -> str:
    return f"{kind.lower()}s"


class KubeApi(ThreadingHTTPServer):
    """Objects by kind and name, in one namespace. `refuse` returns a status and a message for a request, or None."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[tuple[str, str], Object] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.refuse: Callable[[str, str, str], tuple[int, str] | None] = lambda verb, kind, name: None
        self.lock = threading.RLock()
        self.kinds = dict(KINDS)
        self._version = 0

    @property
    def cluster(self) -> Cluster:
        """A connection to it."""
        return Cluster(client.Configuration(host=f"http://127.0.0.1:{self.server_address[1]}"), NAMESPACE)

    def get(self, kind: str, name: str) -> Object:
        return self.objects[kind, name]

    def names(self, kind: str) -> set[str]:
        return {name for each, name in self.objects if each == kind}

    def status(self, run: str) -> Object:
        found: Object = self.get("TrainingRun", run).get("status", {})
        return found

    def condition(self, run: str, kind: str) -> Object:
        return next(each for each in self.status(run)["conditions"] if each["type"] == kind)

    def reasons(self) -> list[str]:
        """The reasons of all events, in their order."""
        return [each["reason"] for (kind, _), each in self.objects.items() if kind == "Event"]

    def count(self, verb: str, kind: str) -> int:
        return sum((each, what) == (verb, kind) for each, what, _ in self.writes)

    def put(self, manifest: Object) -> Object:
        """Make or replace an object as another client would."""
        with self.lock:
            key = (manifest["kind"], manifest["metadata"]["name"])
            before = self.objects.get(key)
            new = deepcopy(manifest)
            if before is not None and "status" in before:
                new.setdefault("status", before["status"])
            metadata = new["metadata"]
            self._version += 1
            old: Object = before["metadata"] if before else {"uid": f"uid-{self._version}", "generation": 0}
            changed = before is None or before.get("spec") != new.get("spec")
            metadata |= {
                "namespace": NAMESPACE,
                "uid": old["uid"],
                "generation": old["generation"] + changed,
                "resourceVersion": str(self._version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            self.objects[key] = new
            return new

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and what it owns."""
        with self.lock:
            gone = self.objects.pop((kind, name))
            uid = gone["metadata"]["uid"]
            for (each, called), found in list(self.objects.items()):
                if any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences", [])):
                    self.delete(each, called)

    def scale(self, run: str, replicas: int) -> None:
        """`kubectl scale trainingrun`."""
        scaled = deepcopy(self.get("TrainingRun", run))
        scaled["spec"].setdefault("actors", {})["replicas"] = replicas
        self.put(scaled)

    def kubelet(self) -> None:
        """Make the pods that workloads ask for, all ready, and delete the others."""
        for kind, name in [key for key in self.objects if key[0] in ("StatefulSet", "Deployment")]:
            workload = self.get(kind, name)
            template, uid = workload["spec"]["template"], workload["metadata"]["uid"]
            wanted = {f"{name}-{index}" for index in range(workload["spec"]["replicas"])}
            there = {
                each["metadata"]["name"]
                for (what, _), each in self.objects.items()
                if what == "Pod" and each["metadata"]["ownerReferences"][0]["uid"] == uid
            }
            for pod in there - wanted:
                self.delete("Pod", pod)
            for pod in wanted - there:
                self.put(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {
                            "name": pod,
                            "labels": template["metadata"]["labels"],
                            "ownerReferences": [{"kind": kind, "name": name, "uid": uid}],
                        },
                        "spec": template["spec"],
                        "status": {
                            "phase": "Running",
                            "conditions": [{"type": "Ready", "status": "True"}],
                            "containerStatuses": [{"name": "c", "ready": True, "state": {"running": {}}}],
                        },
                    }
                )
            workload["status"] = {"replicas": len(wanted), "observedGeneration": workload["metadata"]["generation"]}


class _Handler(BaseHTTPRequestHandler):
    server: KubeApi
    protocol_version = "HTTP/1.1"
    # One packet for head and body: a second one would wait for the first one's acknowledgement.
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if (found := _discovery(url.path, self.server.kinds)) is not None:
            return self._answer(200, found)
        kind, name, _ = self._place(url.path)
        if self._is_refused("get" if name else "list", kind, name):
            return None
        with self.server.lock:
            if name:
                if (kind, name) not in self.server.objects:
                    return self._fail(404, f'{plural(kind)} "{name}" not found')
                return self._answer(200, self.server.objects[kind, name])
            selector = parse_qs(url.query).get("labelSelector", [""])[0]
            wanted = dict(part.split("=") for part in selector.split(",") if part)
            items = [
                # As from a real server, items of a list lack these.
                {key: value for key, value in each.items() if key not in ("kind", "apiVersion")}
                for (what, _), each in self.server.objects.items()
                if what == kind and wanted.items() <= (each["metadata"].get("labels") or {}).items()
            ]
            return self._answer(200, {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": items})

    def do_POST(self) -> None:
        body = self._body()
        kind, _, _ = self._place(urlsplit(self.path).path)
        name = body["metadata"]["name"]
        if self._is_refused("create", kind, name):
            return None
        with self.server.lock:
            if (kind, name) in self.server.objects:
                return self._fail(409, f'{plural(kind)} "{name}" already exists')
            return self._answer(201, self.server.put(body))

    def do_PATCH(self) -> None:
        body = self._body()
        kind, name, subresource = self._place(urlsplit(self.path).path)
        is_apply = "apply" in self.headers["Content-Type"]
        if self._is_refused("apply" if is_apply else f"patch {subresource}".strip(), kind, name):
            return None
        with self.server.lock:
            before = self.server.objects.get((kind, name))
            if before is None and not is_apply:
                return self._fail(404, f'{plural(kind)} "{name}" not found')
            version = body["metadata"].pop("resourceVersion", None)
            if before is not None and version not in (None, before["metadata"]["resourceVersion"]):
                return self._fail(409, f'"{name}": the object has been modified')
            if subresource:
                body = {subresource: body[subresource]}
            return self._answer(200, self.server.put(_merged(before or {}, body)))

    def do_DELETE(self) -> None:
        self._body()
        kind, name, _ = self._place(urlsplit(self.path).path)
        if self._is_refused("delete", kind, name):
            return None
        with self.server.lock:
            if (kind, name) not in self.server.objects:
                return self._fail(404, f'{plural(kind)} "{name}" not found')
            self.server.delete(kind, name)
            return self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _place(self, path: str) -> tuple[str, str, str]:
        """Kind, name and subresource of a path."""
        parts = unquote(path).strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        rest = rest[2:] if rest[0] == "namespaces" else rest
        kind = next(kind for kinds in KINDS.values() for kind in kinds.split() if plural(kind) == rest[0])
        return kind, rest[1] if len(rest) > 1 else "", rest[2] if len(rest) > 2 else ""

    def _is_refused(self, verb: str, kind: str, name: str) -> bool:
        if (said := self.server.refuse(verb, kind, name)) is not None:
            self._fail(*said)
            return True
        if verb not in ("get", "list"):
            self.server.writes.append((verb, kind, name))
        return False

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def _fail(self, status: int, message: str) -> None:
        self._answer(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message})

    def _answer(self, status: int, tree: Object) -> None:
        body = json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _merged(before: Any, change: Any) -> Any:
    """A JSON merge patch. Server-side apply is close enough to it for one manager."""
    if not isinstance(change, dict):
        return change
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _discovery(path: str, kinds: dict[str, str]) -> Object | None:
    if path == "/version":
        return {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
    if path == "/apis":
        groups = []
        for each in kinds:
            if "/" in each:
                offered = {"groupVersion": each, "version": each.split("/")[1]}
                groups.append({"name": each.split("/")[0], "versions": [offered], "preferredVersion": offered})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in kinds:
        return None
    resources = [
        {"name": f"{plural(kind)}{part}", "singularName": "", "kind": kind, "namespaced": True, "verbs": ["get"]}
        for kind in kinds[version].split()
        for part in (("", "/status") if kind in _GENERATED else ("",))
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


@contextmanager
def kube_api() -> Iterator[KubeApi]:
    """Serve for a while."""
    with KubeApi() as api:
        thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()
