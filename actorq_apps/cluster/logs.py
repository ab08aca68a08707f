"""Reads the logs of a run's pods."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Any

from kubernetes.client.exceptions import ApiException

from actorq.errors import ActorQError
from actorq_apps.cluster.connection import Cluster, UnreachableError

_LAST_LINES = 20
# Limits on reading: lines may have any length, and the log of a pod on a lost node never arrives.
_LAST_BYTES, _LAST_S = 65_536, 5.0
# A followed log may be silent for hours.
_SILENCE_S = 86_400.0
_CLOSE_S = 5.0


def last_log_line(cluster: Cluster, pod: str, container: str) -> str:
    """The line that explains a container's end: the last one that begins with "error", or else the last line."""
    timeout_s = min(cluster.timeout_s, _LAST_S)
    limits: Any = {"tail_lines": _LAST_LINES, "limit_bytes": _LAST_BYTES, "_request_timeout": timeout_s}
    # If a restarted container has an empty log, the previous log is used.
    for previous in (False, True):
        try:
            with cluster.refusals(f"read the log of pod {pod}"):
                text = cluster.core().read_namespaced_pod_log(
                    *(pod, cluster.namespace), container=container, previous=previous, **limits
                )
        except UnreachableError:
            return ""
        except ActorQError:
            continue
        if lines := [line.strip() for line in str(text).splitlines() if line.strip()]:
            errors = [line for line in lines if line.startswith("error: ")]
            return (errors or lines)[-1].removeprefix("error: ")
    return ""


def stream_logs(
    cluster: Cluster,
    pods: Mapping[str, str],
    follow: bool,
    tail: int | None,
    write: Callable[[str, str], None],
    previous: bool = False,
) -> None:
    """Pass each line of the pods' logs to `write`, with its pod. With `follow`, continue until all pods have ended.

    pods: the container of each pod by the pod's name; empty for its only container.
    previous: the logs before each container's last restart; not with `follow`.
    If one of several pods has no log, the reason replaces its lines. Only the caller's thread calls `write`.
    """
    options: dict[str, Any] = {"follow": follow, "previous": previous, "tail_lines": tail}
    if follow:
        options["_request_timeout"] = (cluster.timeout_s, _SILENCE_S)
    if follow and len(pods) > 1:
        # The streams are closed, because the process must not end before the reading threads.
        with closing(_followed(cluster, pods, options)) as followed:
            for pod, line in followed:
                write(pod, line)
        return
    for pod, container in pods.items():
        for line in _lines(cluster, pod, container, options, alone=len(pods) == 1):
            write(pod, line)


def _followed(cluster: Cluster, pods: Mapping[str, str], options: dict[str, Any]) -> Generator[tuple[str, str]]:
    """The lines of several pods as they arrive, each with its pod. `close` ends the reading threads."""
    given: SimpleQueue[tuple[str, str] | BaseException | None] = SimpleQueue()
    lock, closed = threading.Lock(), threading.Event()
    responses: list[Any] = []

    def opened(response: Any) -> None:
        with lock:
            responses.append(response)
            if closed.is_set():
                _end(response)

    def read(pod: str, container: str) -> None:
        try:
            for line in _lines(cluster, pod, container, options, False, opened):
                given.put((pod, line))
            given.put(None)
        except BaseException as error:
            given.put(error)

    threads = [threading.Thread(target=read, args=each, name=f"log {each[0]}", daemon=True) for each in pods.items()]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            match given.get():
                case None:
                    left -= 1
                case BaseException() as error:
                    raise error
                case pod, line:
                    yield pod, line
    finally:
        with lock:
            closed.set()
            for response in responses:
                _end(response)
        for thread in threads:
            thread.join(_CLOSE_S)


def _end(response: Any) -> None:
    # Closing a response that has ended fails.
    with suppress(OSError, RuntimeError, ValueError):
        response.shutdown()


def _lines(
    cluster: Cluster,
    pod: str,
    container: str,
    options: dict[str, Any],
    alone: bool,
    opened: Callable[[Any], None] = lambda _: None,
) -> Iterator[str]:
    """The lines of a log. If it is one of several logs, the reason of a failure replaces them."""
    try:
        with cluster.refusals(f"read the log of pod {pod}"):
            logs: Any = cluster.core().read_namespaced_pod_log
            of = {"container": container} if container else {}
            response = logs(pod, cluster.namespace, _preload_content=False, **of, **options)
            opened(response)
            if response.status != 200:
                raise ApiException(status=response.status, reason=response.reason, body=response.read())
            for line in response:
                yield line.removesuffix(b"\n").decode("utf-8", "replace")
    except ActorQError as error:
        if alone:
            raise
        yield str(error)
