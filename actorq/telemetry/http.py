"""A small HTTP server on its own threads, for metrics and probes."""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from actorq.errors import UserError
from actorq.transport.addresses import split_address

_log = logging.getLogger(__name__)

# Each connection uses a thread and a descriptor. The service needs descriptors for its calls.
_MOST_CONNECTIONS = 32
# Seconds that the oldest connection has to close, and seconds between attempts without free descriptors.
_ROOM_S, _NO_DESCRIPTOR_S = 1.0, 0.1


class HttpServer:
    """Answers requests with a WSGI application until closed or until the process ends.

    A client has `patience_s` seconds for its request and the answer. Beyond 32 connections, the oldest is closed.

    address: "HOST:PORT" with the port that was bound.
    """

    def __init__(
        self, flag: str, listen: str, application: Callable[..., Iterable[bytes]], patience_s: float = 10.0
    ) -> None:
        """Bind and serve. Raises UserError that names `flag` when `listen` is malformed or cannot be bound."""
        host, port = split_address(flag, listen)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._server = _Server(family, host, port, patience_s)
        except OSError as error:
            raise UserError(
                f"{flag}: cannot listen on {listen} ({error.strerror}); free the port, choose another one, or let "
                "the system choose with port 0"
            ) from None
        self._server.set_app(application)
        self.address = f"{listen.rpartition(':')[0]}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because requests are frequent and all alike."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # Connections that the loop has not accepted yet. A probe must not wait behind the default of five.
    request_queue_size = 128

    def __init__(self, family: socket.AddressFamily, host: str, port: int, patience_s: float) -> None:
        self.address_family = family
        self._patience_s = patience_s
        # The connections of all handlers, oldest first, with their start times.
        self._open: dict[Any, float] = {}
        self._changed = threading.Condition()
        super().__init__((host, port), _Handler)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # The connection stays in the port's queue. Without a wait, the loop would retry immediately.
            time.sleep(_NO_DESCRIPTOR_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            if len(self._open) >= _MOST_CONNECTIONS:
                # The oldest connection is closed, because it is probably idle. The new connection may be a probe.
                _cut_off(next(iter(self._open)))
            has_room = self._changed.wait_for(lambda: len(self._open) < _MOST_CONNECTIONS, _ROOM_S)
            if has_room:
                self._open[request] = time.monotonic()
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Close the connections that exceed their time. `serve_forever` calls this at least twice a second."""
        started = time.monotonic() - self._patience_s
        with self._changed:
            for request in [request for request, since in self._open.items() if since <= started]:
                _cut_off(request)

    def shutdown_request(self, request: Any) -> None:
        # This precedes the close, after which another connection may get the same descriptor.
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the traceback of a bug. Clients that send nothing or disconnect, such as port checks, are not bugs."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a request of %s failed", client_address)

    def server_bind(self) -> None:
        # The inherited method asks DNS for the host's name. Nothing uses it, and without a server this is slow.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


def _cut_off(connection: socket.socket) -> None:
    """End a connection on which its handler may be waiting."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
