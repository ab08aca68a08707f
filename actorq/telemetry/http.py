"""A small HTTP server on its own threads, for metrics and probes."""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from actorq.errors import UserError
from actorq.transport.addresses import split_listen_address

_log = logging.getLogger(__name__)

# A connection may be silent for this long: it occupies a thread.
_PATIENCE_S = 10.0


class HttpServer:
    """Answers requests with a WSGI application until it is closed or the process ends.

    address: "HOST:PORT" with the port that was bound.
    """

    def __init__(self, flag: str, listen: str, application: Callable[..., Iterable[bytes]]) -> None:
        """Bind and serve. Raises UserError that names `flag` when `listen` is malformed or cannot be bound."""
        host, port = split_listen_address(flag, listen)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._server = _Server(family, host, port)
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
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests are frequent and all alike."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, host: str, port: int) -> None:
        self.address_family = family
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the traceback of a fault. A client that says nothing or hangs up, such as a port check, is no fault."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a request of %s failed", client_address)

    def server_bind(self) -> None:
        # The inherited method asks DNS for the host's name, which nothing uses, and waits long without a server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()
