"""The cluster of the current context: reads and writes objects, and turns what goes wrong into this project's errors.

Objects are plain JSON trees, as the API gives them.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.discovery import LazyDiscoverer
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from kubernetes.stream.ws_client import create_websocket
from urllib3.exceptions import HTTPError

from actorq.cluster.objects import Object
from actorq.cluster.refusals import explained
from actorq.errors import NotFoundError, UserError

FIELD_MANAGER = "actorq"
_READ_TIMEOUT_S = 30.0
# Set in every container of a cluster.
_POD_HOST = "KUBERNETES_SERVICE_HOST"


class _Discoverer(LazyDiscoverer):
    """Finds out anew what kinds the cluster has; the library's file in /tmp knows those of an earlier cluster."""

    def _write_cache(self) -> None:
        pass


class Cluster:
    """One namespace of the cluster that the current context names."""

    def __init__(self, configuration: client.Configuration, namespace: str) -> None:
        self.namespace = namespace
        self.host = str(configuration.host)
        self._configuration = configuration
        self._dynamic: DynamicClient | None = None

    def core(self) -> client.CoreV1Api:
        """Typed access for what is no object, with a connection of its own: streams change the client they use."""
        return client.CoreV1Api(client.ApiClient(self._configuration))

    def open_websocket(self, path: str, query: str) -> Any:
        """A WebSocket to a part of an object of the namespace, such as "pods/learner-0/portforward"."""
        base = self.host.replace("http", "ws", 1)
        # The credentials may have been renewed: only this asks for those of now.
        settings: dict[str, Any] = dict(self._configuration.auth_settings())
        headers = {each["key"]: each["value"] for each in settings.values()}
        try:
            url = f"{base}/api/v1/namespaces/{self.namespace}/{path}?{query}"
            return create_websocket(self._configuration, url, headers)
        except Exception as error:
            # The WebSocket library's own errors, those of sockets, and those of TLS; with what the server answered.
            raise ApiException(status=0, reason=str(error)) from error

    def get(self, api_version: str, kind: str, name: str) -> Object | None:
        """One object; None when there is none."""
        try:
            with self.refusals(f"read {kind} {name}"):
                return self._request("get", api_version, kind, name=name)
        except NotFoundError:
            return None

    def list(self, api_version: str, kind: str, selector: str = "") -> list[Object]:
        """All objects of a kind with some labels."""
        with self.refusals(f"list {kind}"):
            found = self._request("get", api_version, kind, label_selector=selector)
        items: list[Object] = found.get("items") or []
        return items

    def apply(self, manifest: Object, dry_run: bool = False) -> None:
        """Make an object or bring it to what the manifest says (server-side apply); dry_run: only ask if it may be."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        options: dict[str, Any] = {"dry_run": "All"} if dry_run else {}
        with self.refusals(f"apply {kind} {name}"):
            # Forced: what somebody scaled or edited by hand goes back to the manifest, as with any apply.
            self._request(
                "server_side_apply",
                manifest["apiVersion"],
                kind,
                body=manifest,
                name=name,
                field_manager=FIELD_MANAGER,
                force_conflicts=True,
                **options,
            )

    def create(self, manifest: Object) -> None:
        """Make an object; raises ConflictError when it exists."""
        with self.refusals(f"create {manifest['kind']} {manifest['metadata']['name']}"):
            self._request("create", manifest["apiVersion"], manifest["kind"], body=manifest)

    def patch(self, api_version: str, kind: str, name: str, change: Object) -> None:
        """Merge a change into an object; raises NotFoundError when there is none."""
        with self.refusals(f"change {kind} {name}"):
            self._request(
                "patch", api_version, kind, name=name, body=change, content_type="application/merge-patch+json"
            )

    def scale(self, deployment: str, replicas: int) -> int:
        """Set a Deployment's number of pods, by its scale alone, which is a smaller permission; returns the old one.

        Raises NotFoundError when there is no such Deployment.
        """
        with self.refusals(f"scale Deployment {deployment}"):
            scale = self._resource("apps/v1", "Deployment").subresources["scale"]
            where = {"name": deployment, "namespace": self.namespace}
            before: Object = scale.get(**where).to_dict()
            change = {"spec": {"replicas": replicas}}
            scale.patch(**where, body=change, content_type="application/merge-patch+json")
        return int(before["spec"].get("replicas") or 0)

    def delete(self, api_version: str, kind: str, name: str) -> bool:
        """Remove an object and what it made; returns whether it was there."""
        try:
            with self.refusals(f"delete {kind} {name}"):
                self._request("delete", api_version, kind, name=name, propagation_policy="Background")
        except NotFoundError:
            return False
        return True

    def is_namespaced(self, api_version: str, kind: str) -> bool:
        """Whether objects of a kind live in a namespace; raises UserError when the cluster has no such kind."""
        with self.refusals(f"find out about {kind}"):
            return bool(self._resource(api_version, kind).namespaced)

    def has_kind(self, api_version: str, kind: str) -> bool:
        """Whether the cluster has a kind of objects."""
        with self.refusals(f"find out about {kind}"):
            return self._find(api_version, kind) is not None

    def await_pod_change(self, selector: str, at_most_s: int) -> None:
        """Return when a pod changes, or after a while."""
        with self.refusals("watch Pods"):
            listed = self._request("get", "v1", "Pod", label_selector=selector, limit=1)
            events = watch.Watch().stream(
                self._resource("v1", "Pod").get,
                namespace=self.namespace,
                label_selector=selector,
                resource_version=listed["metadata"].get("resourceVersion"),
                serialize=False,
                timeout_seconds=at_most_s,
                # The server ends it; for when the server is gone without a word.
                _request_timeout=at_most_s + _READ_TIMEOUT_S,
            )
            next(iter(events), None)

    @contextmanager
    def refusals(self, doing: str) -> Iterator[None]:
        """Turn what the cluster says no to, and its absence, into this project's errors."""
        try:
            yield
        except ApiException as error:
            raise explained(error, doing) from error
        except HTTPError as error:
            raise UserError(
                f"no cluster: {self.host} cannot be reached ({_reason(error)}); check `kubectl config current-context`"
            ) from error

    def _resource(self, api_version: str, kind: str) -> Any:
        found = self._find(api_version, kind)
        if found is None:
            raise UserError(f"the cluster has no kind {kind} ({api_version}): install what brings it, or leave it out")
        return found

    def _find(self, api_version: str, kind: str) -> Any:
        try:
            return self._discovered().resources.get(api_version=api_version, kind=kind)
        except ResourceNotFoundError:
            return None

    def _discovered(self) -> DynamicClient:
        if self._dynamic is None:
            nowhere = os.path.join(os.devnull, "none")
            try:
                self._dynamic = DynamicClient(client.ApiClient(self._configuration), nowhere, _Discoverer)
            except (AttributeError, TypeError, ValueError):
                # The library takes it for granted that the answer is what a Kubernetes API server says.
                raise UserError(
                    f"no cluster: what answers at {self.host} is no Kubernetes API server; check the `server` of the "
                    "current context (`kubectl config view --minify`)"
                ) from None
        return self._dynamic

    def _request(self, verb: str, api_version: str, kind: str, **arguments: Any) -> Object:
        resource = self._resource(api_version, kind)
        if resource.namespaced:
            arguments["namespace"] = self.namespace
        answer: Object = getattr(resource, verb)(**arguments, _request_timeout=_READ_TIMEOUT_S).to_dict()
        return answer


def connect(namespace: str | None) -> Cluster:
    """The cluster of the current context (KUBECONFIG, ~/.kube/config), or of the pod that this runs in.

    namespace: that of the context when None. Raises UserError when there is no cluster.
    """
    configuration = client.Configuration()
    # Where credentials come from a command, the library logs why it gave none, and goes on without.
    refused = _Heard()
    logging.getLogger().addHandler(refused)
    try:
        if _POD_HOST in os.environ and "KUBECONFIG" not in os.environ and not Path(_kubeconfig()).exists():
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(_kubeconfig(), client_configuration=configuration)
        namespace = namespace or _context_namespace()
    except config.ConfigException as error:
        raise _no_configuration(str(error)) from None
    except Exception as error:
        # The library checks little of a kubeconfig: it fails in any way on one that is not what it expects.
        raise _no_configuration(f"{_kubeconfig()} is no kubeconfig that can be read ({error})") from None
    finally:
        logging.getLogger().removeHandler(refused)
    if refused.text:
        raise UserError(
            f"no cluster: the command that gives your credentials fails ({refused.text}); see `users` in "
            "`kubectl config view --minify`"
        )
    if not str(configuration.host).startswith(("http://", "https://")):
        raise _no_configuration(f"`server` of the current context: expected https://HOST, got {configuration.host!r}")
    return Cluster(configuration, namespace)


class _Heard(logging.Handler):
    """Keeps the last error that was logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = " ".join(record.getMessage().split())


def _no_configuration(reason: str) -> UserError:
    return UserError(
        f"no cluster: {' '.join(reason.split()).rstrip('.')}; set KUBECONFIG, or choose a context with "
        "`kubectl config use-context`"
    )


def _kubeconfig() -> str:
    """Where kubectl looks too: one file, or several to be merged."""
    return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


def _context_namespace() -> str:
    try:
        _, current = config.list_kube_config_contexts(_kubeconfig())
    except config.ConfigException:
        return _pod_namespace()
    return str(current["context"].get("namespace") or "default")


def _pod_namespace() -> str:
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return "default"


def _reason(error: HTTPError) -> str:
    """The last part of urllib3's nested message, such as "Connection refused"."""
    cause = getattr(error, "reason", None) or error
    text = " ".join(str(cause).split()).partition(" (_ssl")[0]
    # "[Errno 111] Connection refused", "[SSL: WRONG_VERSION_NUMBER] wrong version number"
    return text.rpartition(": ")[2].rpartition("] ")[2].rstrip(")")
