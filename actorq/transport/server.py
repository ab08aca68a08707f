"""The one way to serve: limits, TLS, health, reflection, error statuses, a port or a clear error, a graceful end."""

from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from actorq.errors import UserError
from actorq.transport.addresses import split_listen_address
from actorq.transport.calls import CallCounts
from actorq.transport.errors import ErrorInterceptor
from actorq.transport.options import SERVER_OPTIONS, Certificates
from actorq.transport.renewal import Renewal


class Server:
    """A gRPC server on one address with health and reflection for the services that were added to it.

    It starts SERVING when `start` returns; `stop` says NOT_SERVING first and lets running calls finish. `calls` counts
    how each ended, `serving` is what health says. Certificates that are renewed in their folder count from the next
    connection on.
    """

    def __init__(self, listen: str, certificates: Certificates | None = None, calls: CallCounts | None = None) -> None:
        self.calls = calls or CallCounts()
        self.grpc_server = grpc.aio.server(interceptors=[ErrorInterceptor(self.calls)], options=SERVER_OPTIONS)
        self._health = HealthServicer()
        self._listen = listen
        self._certificates = certificates
        self._names: tuple[str, ...] = ()
        self.address = ""
        self.serving = False

    async def start(self, service_names: Iterable[str]) -> str:
        """Bind, serve `service_names` (which were registered at `grpc_server`), and return "HOST:PORT".

        Raises UserError when the address cannot be bound.
        """
        self._names = tuple(service_names)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((*self._names, health_name, reflection.SERVICE_NAME), self.grpc_server)
        host, port = self._bind()
        self.address = f"{host}:{port}"
        await self.grpc_server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return self.address

    async def say_not_serving(self) -> None:
        """Tell health checks to send nobody here any more; calls are still taken until `stop`."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Say NOT_SERVING, take no new calls, give running ones `grace_s` seconds, then cancel them."""
        await self.say_not_serving()
        await self.grpc_server.stop(grace_s)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        self.serving = status == health_pb2.HealthCheckResponse.SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    def _bind(self) -> tuple[str, int]:
        split_listen_address("--listen", self._listen)
        try:
            if self._certificates is None:
                bound = self.grpc_server.add_insecure_port(self._listen)
            else:
                bound = self.grpc_server.add_secure_port(self._listen, _server_credentials(self._certificates))
        except RuntimeError:
            bound = 0
        if not bound:
            raise UserError(
                f"--listen: cannot listen on {self._listen}: the port is in use or the address is not this host's; "
                "free it, choose another port, or let the system choose with port 0"
            )
        return self._listen.rpartition(":")[0], bound


def _server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    renewal = Renewal(certificates)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC on a thread of its own, before the handshake of each new connection."""
        renewed = renewal.take()
        return None if renewed is None else _configuration(renewed)

    return grpc.dynamic_ssl_server_credentials(_configuration(certificates), fetch, require_client_authentication=True)


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.certificate)], root_certificates=certificates.authority
    )
