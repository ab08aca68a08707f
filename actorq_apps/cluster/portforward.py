"""Forwards a local port to a pod through the API server, as `kubectl port-forward` does."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from kubernetes.stream.ws_client import PortForward as WebSocketPorts

from actorq.errors import ActorQError, UserError
from actorq_apps.cluster.connection import Cluster

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 256 * 1024
_CLOSE_S = 5.0


class PortForward(AbstractContextManager["PortForward", None]):
    """A listening socket on this machine. Each of its connections gets a separate connection to the far end.

    If the far end cannot be reached, the connection is closed at once, so that the client can try again. The next
    connection finds the pod that replaced an old one. `failure` is the reason why the newest connection failed. `tell`
    is called once for each reason. `opener` returns a socket to the far end, or raises an ActorQError.
    """

    def __init__(self, opener: Callable[[], Any], port: int = 0, tell: Callable[[str], None] = _log.info) -> None:
        self._opener = opener
        self._tell = tell
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._closed = False
        self._carriers: list[threading.Thread] = []
        self.failure: ActorQError | None = None
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} of this machine cannot be used ({os.strerror(error.errno or 0)})") from None
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, name=f"forward {self.address}", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Stop listening and end all connections."""
        with self._lock:
            self._closed = True
            ends = tuple(self._open)
        # shutdown wakes a thread that waits in accept(). close does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        _end(*ends)
        # A connecting thread cannot be interrupted. The libraries abort if the process ends before it.
        for carrier in self._carriers:
            carrier.join(_CLOSE_S)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._carriers = [carrier for carrier in self._carriers if carrier.is_alive()]
            carrier = threading.Thread(target=self._carry, args=(near,), name=f"forward {self.address}", daemon=True)
            self._carriers.append(carrier)
            carrier.start()

    def _carry(self, near: socket.socket) -> None:
        try:
            far = self._opener()
            self.failure = None
        except ActorQError as error:
            if str(error) != str(self.failure):
                self._tell(f"{self.address}: {error}")
            self.failure = error
            near.close()
            return
        ends = (near, far)
        with self._lock:
            self._open.update(ends)
            closed = self._closed
        if closed:
            _end(*ends)
        back = threading.Thread(target=_pump, args=(far, near), name=f"forward {self.address}", daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        with self._lock:
            self._open.difference_update(ends)
        for end in ends:
            end.close()


class _PodPort(WebSocketPorts):
    """The library's sockets over a WebSocket. They end silently, where the library's thread would raise an error."""

    def _proxy(self) -> None:
        try:
            super()._proxy()  # type: ignore[no-untyped-call]
        except Exception as error:
            _log.debug("connection to a pod ended: %s", error)
        finally:
            for port in self.local_ports.values():
                port.python.close()
            # close would wait until the other side closes.
            self.websocket.shutdown()


def open_pod_port(cluster: Cluster, pod: str, port: int) -> Any:
    """A socket to a port of a pod."""
    with cluster.refusals(f"forward port {port} of pod {pod}"):
        websocket = cluster.open_websocket(f"pods/{pod}/portforward", f"ports={port}")
        ports: Any = _PodPort(websocket, [port])  # type: ignore[no-untyped-call]
        return ports.socket(port)


def _pump(source: Any, target: Any) -> None:
    """Copy until the source ends, then end both directions, as for a lost connection."""
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    _end(source, target)


def _end(*ends: Any) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
