"""The cluster of the current context: reads and writes objects, and converts failures to this project's errors.

Objects are plain JSON trees, as in the API.
"""

import builtins
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTClientObject
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.discovery import LazyDiscoverer
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from kubernetes.stream.ws_client import create_websocket
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from actorq.errors import NotFoundError, UserError
from actorq_apps.cluster.answers import decoded, explained, lines
from actorq_apps.cluster.objects import ACTORQ, RUN_LABEL, Object, part

FIELD_MANAGER = "actorq"
TIMEOUT_S = 30.0
_CHUNK = 2**16
# urllib3 would repeat a GET three times without a pause. With a hanging server, this would take four times as long.
_ONCE = Retry(total=None, connect=0, read=0, other=0, redirect=3)


class _Discoverer(LazyDiscoverer):
    """Discovers the cluster's kinds without a cache. The library's cache in /tmp may describe an earlier cluster."""

    def _write_cache(self) -> None:
        pass


class UnreachableError(UserError):
    """The API server does not answer. If it has answered before, the same call may succeed later."""


class _Rest(RESTClientObject):
    """Limits the time of each request, including the library's own requests."""

    def __init__(self, configuration: client.Configuration, timeout_s: float) -> None:
        super().__init__(configuration)
        self._timeout_s = timeout_s

    def request(self, *arguments: Any, **named: Any) -> Any:
        named["_request_timeout"] = named.get("_request_timeout") or self._timeout_s
        return super().request(*arguments, **named)  # type: ignore[no-untyped-call]


class _Kinds:
    """The kinds of the cluster. Each kind is looked up only once. Thread-safe."""

    def __init__(self, configuration: client.Configuration) -> None:
        self._configuration = configuration
        self._lock = threading.Lock()
        self._dynamic: DynamicClient | None = None
        self._found: dict[tuple[str, str], Any] = {}

    def find(self, api_version: str, kind: str) -> Any:
        """The library's access to a kind; None if the cluster lacks it."""
        if (known := self._found.get((api_version, kind))) is not None:
            return known
        with self._lock:
            try:
                found = self._discovered().resources.get(api_version=api_version, kind=kind)
            except ResourceNotFoundError:
                return None
            except Exception:
                # The library may know only half of the kinds.
                self._dynamic = None
                raise
            self._found[api_version, kind] = found
            return found

    def _discovered(self) -> DynamicClient:
        if self._dynamic is None:
            nowhere = os.path.join(os.devnull, "none")
            try:
                self._dynamic = DynamicClient(_client(self._configuration, TIMEOUT_S), nowhere, _Discoverer)
            except (AttributeError, TypeError, ValueError):
                # The library does not check whether the server is a Kubernetes API server.
                raise UserError(
                    f"no cluster: the server at {self._configuration.host} is no Kubernetes API server; check the "
                    "`server` of the current context (`kubectl config view --minify`)"
                ) from None
        return self._dynamic


@dataclass(eq=False)
class Cluster:
    """One namespace of the cluster of the current context. An empty namespace can only list objects of all namespaces.

    run: name of the run whose objects are used; empty for the only run of the namespace.
    manager: the field manager of `apply` at the API server.
    """

    configuration: client.Configuration
    namespace: str
    manager: str = FIELD_MANAGER
    run: str = ""
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        self.selector = f"{ACTORQ},{RUN_LABEL}={self.run}" if self.run else ACTORQ
        self.host = str(self.configuration.host)
        self.configuration.retries = _ONCE
        self._kinds = _Kinds(self.configuration)

    def at(self, namespace: str, manager: str = "", timeout_s: float = 0.0) -> "Cluster":
        """Another namespace of the same cluster. It shares the known kinds."""
        manager, timeout_s = manager or self.manager, timeout_s or self.timeout_s
        other = replace(self, namespace=namespace, manager=manager, timeout_s=timeout_s)
        other._kinds = self._kinds
        return other

    def core(self) -> client.CoreV1Api:
        """Typed access to everything except objects. It has its own connection, because streams modify it."""
        return client.CoreV1Api(_client(self.configuration, self.timeout_s))

    def open_websocket(self, path: str, query: str) -> Any:
        """A WebSocket to a subresource of an object, such as "pods/learner-0/portforward"."""
        base = self.host.replace("http", "ws", 1)
        # Only this call refreshes expired credentials.
        settings: dict[str, Any] = dict(self.configuration.auth_settings())
        headers = {each["key"]: each["value"] for each in settings.values()}
        try:
            url = f"{base}/api/v1/namespaces/{self.namespace}/{path}?{query}"
            return create_websocket(self.configuration, url, headers)
        except Exception as error:
            # Errors of the WebSocket library, of sockets and of TLS, with the server's answer.
            raise ApiException(status=0, reason=str(error)) from error

    def get(self, api_version: str, kind: str, name: str) -> Object | None:
        """One object; None when it does not exist."""
        try:
            return self._request(f"read {kind} {name}", "get", api_version, kind, name=name)
        except NotFoundError:
            return None

    def list(self, api_version: str, kind: str, selector: str = "") -> list[Object]:
        """All objects of a kind with the given labels."""
        return self.listed(api_version, kind, selector)[0]

    def listed(self, api_version: str, kind: str, selector: str = "") -> tuple["builtins.list[Object]", str]:
        """All objects of a kind with the given labels, and the version of the list, for `changes`."""
        found = self._request(f"list {kind}", "get", api_version, kind, label_selector=selector)
        # Items of a list lack these two fields.
        items = [{**each, "apiVersion": api_version, "kind": kind} for each in found.get("items") or ()]
        return items, str(found["metadata"].get("resourceVersion") or "")

    def changes(self, api_version: str, kind: str, version: str, at_most_s: int) -> Iterator[tuple[str, Object]]:
        """The changes of a kind's objects since a version of their list, as they happen, for `at_most_s` seconds.

        Yields ADDED, MODIFIED or DELETED with the object. If the version is too old, yields only ERROR.
        """
        with self.refusals(f"watch {kind}"):
            options = _ending(at_most_s) | ({"namespace": self.namespace} if self.namespace else {})
            answer = self._resource(api_version, kind).get(resource_version=version, watch="true", **options)
            try:
                for line in lines(answer.stream(_CHUNK)):
                    change = decoded(line)
                    yield str(change.get("type")), part(change, "object")
            finally:
                answer.close()

    def apply(self, manifest: Object, dry_run: bool = False) -> None:
        """Create or update an object (server-side apply). dry_run: only check whether this is allowed."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        # Apply is forced: it resets fields that somebody scaled or edited by hand.
        options: Any = {"field_manager": self.manager, "force_conflicts": True, "dry_run": "All" if dry_run else None}
        what = "server_side_apply", manifest["apiVersion"], kind
        self._request(f"apply {kind} {name}", *what, body=manifest, name=name, **options)

    def create(self, manifest: Object) -> None:
        """Create an object. Raises ConflictError when it exists."""
        doing = f"create {manifest['kind']} {manifest['metadata']['name']}"
        self._request(doing, "create", manifest["apiVersion"], manifest["kind"], body=manifest)

    def patch(self, api_version: str, kind: str, name: str, change: Object, subresource: str = "") -> Object:
        """Merge a change into an object or its subresource. Returns the object. Raises NotFoundError if there is none.

        A resourceVersion in the change is a condition. Raises ConflictError when it is not met.
        """
        return self._merge(f"change {kind} {name}", api_version, kind, subresource, name, change)

    def scale(self, api_version: str, kind: str, name: str, replicas: int) -> int:
        """Set an object's number of pods by its scale, which needs fewer permissions. Returns the old number.

        Raises NotFoundError when the object does not exist.
        """
        doing = f"scale {kind} {name}"
        before = self._request(doing, "get", api_version, kind, "scale", name=name)
        self._merge(doing, api_version, kind, "scale", name, {"spec": {"replicas": replicas}})
        return int(before["spec"].get("replicas") or 0)

    def delete(self, api_version: str, kind: str, name: str) -> bool:
        """Remove an object and its dependents. Returns whether it existed."""
        try:
            doing = f"delete {kind} {name}"
            self._request(doing, "delete", api_version, kind, name=name, propagation_policy="Background")
        except NotFoundError:
            return False
        return True

    def is_namespaced(self, api_version: str, kind: str) -> bool:
        """Whether objects of a kind live in a namespace. Raises UserError when the cluster lacks the kind."""
        with self.refusals(f"look up {kind}"):
            return bool(self._resource(api_version, kind).namespaced)

    def has_kind(self, api_version: str, kind: str) -> bool:
        """Whether the cluster supports this kind of objects."""
        with self.refusals(f"look up {kind}"):
            return self._kinds.find(api_version, kind) is not None

    def await_pod_change(self, selector: str, at_most_s: int) -> None:
        """Return when a pod changes, or after `at_most_s` seconds."""
        with self.refusals("watch Pods"):
            listed = self._request("watch Pods", "get", "v1", "Pod", label_selector=selector, limit=1)
            version = listed["metadata"].get("resourceVersion")
            options = _ending(at_most_s) | {"namespace": self.namespace, "label_selector": selector}
            events = watch.Watch().stream(self._resource("v1", "Pod").get, resource_version=version, **options)
            next(iter(events), None)

    @contextmanager
    def refusals(self, doing: str) -> Iterator[None]:
        """Convert the cluster's refusals and failed connections to this project's errors."""
        try:
            yield
        except ApiException as error:
            raise explained(error, doing) from error
        except HTTPError as error:
            raise UnreachableError(
                f"no cluster: {self.host} cannot be reached ({_reason(error)}); check `kubectl config current-context`"
            ) from error

    def _resource(self, api_version: str, kind: str) -> Any:
        found = self._kinds.find(api_version, kind)
        if found is None:
            raise UserError(f"the cluster has no kind {kind} ({api_version}): install its provider, or leave it out")
        return found

    def _merge(self, doing: str, api_version: str, kind: str, subresource: str, name: str, change: Object) -> Object:
        named = {"name": name, "body": change, "content_type": "application/merge-patch+json"}
        return self._request(doing, "patch", api_version, kind, subresource, **named)

    def _request(
        self, doing: str, verb: str, api_version: str, kind: str, subresource: str = "", **arguments: Any
    ) -> Object:
        with self.refusals(doing):
            resource = self._resource(api_version, kind)
            if resource.namespaced and self.namespace:
                arguments["namespace"] = self.namespace
            if subresource:
                resource = resource.subresources[subresource]
            # By default, the library would wrap each value of the answer in an object.
            answer = getattr(resource, verb)(**arguments, serialize=False, _request_timeout=self.timeout_s)
            # The body is read from the network only here.
            return decoded(answer.data)


def _ending(at_most_s: int) -> Object:
    # The server ends the request. The second timeout covers a server that disappears.
    return {"serialize": False, "timeout_seconds": at_most_s, "_request_timeout": at_most_s + TIMEOUT_S}


def _client(configuration: client.Configuration, timeout_s: float) -> client.ApiClient:
    found = client.ApiClient(configuration)
    found.rest_client = _Rest(configuration, timeout_s)
    return found


def _reason(error: HTTPError) -> str:
    """The last part of urllib3's nested message, such as "Connection refused"."""
    cause = getattr(error, "reason", None) or error
    text = " ".join(str(cause).split()).partition(" (_ssl")[0]
    # "[Errno 111] Connection refused", "[SSL: WRONG_VERSION_NUMBER] wrong version number"
    return text.rpartition(": ")[2].rpartition("] ")[2].rstrip(")")
