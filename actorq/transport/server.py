"""The gRPC server: limits, TLS, health, reflection, error statuses, a clear error for a used port, graceful stop."""

import asyncio
import logging
from collections.abc import Callable, Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from actorq.errors import UserError
from actorq.transport.addresses import split_address
from actorq.transport.calls import CallCounts
from actorq.transport.floods import FloodGuard
from actorq.transport.health_servicer import Health
from actorq.transport.interceptor import CallInterceptor
from actorq.transport.options import Certificates, ServerLimits, server_options
from actorq.transport.quota import Quota
from actorq.transport.security.access import Access, Gate
from actorq.transport.security.renewal import Renewal

_log = logging.getLogger(__name__)

_LIFE_PERIOD_S = 1.0
# Time for handlers of canceled calls to clean up.
_HANDLERS_S = 1.0


class Server:
    """A gRPC server on one address, with health and reflection for the added services.

    Health has two answers. The server as a whole (the empty name, for liveness) is SERVING after `start`, while the
    service reports that it is alive. Each service (for readiness) is SERVING after `start` or `say_ready`. `stop` first
    sets both to NOT_SERVING, then lets running calls finish.

    `calls` counts how calls ended. `serving` is whether the services are SERVING. `alive` is the service's last answer.
    With certificates, `access` has the rules for callers. Renewed certificates in the folder apply from the next
    connection on.
    """

    def __init__(
        self,
        listen: str,
        certificates: Certificates | None = None,
        calls: CallCounts | None = None,
        limits: ServerLimits | None = None,
        access: Access | None = None,
    ) -> None:
        """Raises UserError when the deny list of `access` is unusable."""
        self.calls = calls or CallCounts()
        limits, access = limits or ServerLimits(), access or Access()
        self._gate = Gate(access) if certificates else None
        self._tasks: list[asyncio.Task[None]] = []
        self.floods = FloodGuard(self.calls.record_closed)
        self._interceptor = CallInterceptor(
            self.calls, Quota(limits.open_calls, limits.calls_of_address), self._gate, self.floods.traffic
        )
        options = [*server_options(limits), *(access.server_options() if certificates else [])]
        self.grpc_server = grpc.aio.server(interceptors=[self._interceptor], options=options)
        self._health = Health()
        self._listen = listen
        self._certificates = certificates
        self._names: tuple[str, ...] = ()
        self.address = ""
        self.serving = False
        self.alive = True
        self._leaving = False

    def bind(self) -> None:
        """Bind the address early; otherwise `start` does it. Raises UserError when it cannot be bound."""
        split_address("--listen", self._listen)
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
        self.address = f"{self._listen.rpartition(':')[0]}:{bound}"

    async def start(
        self, service_names: Iterable[str], ready: bool = True, alive: Callable[[], bool] = lambda: True
    ) -> str:
        """Bind, serve `service_names` (registered at `grpc_server`), and return "HOST:PORT".

        ready: whether the services are SERVING at once. Otherwise the caller must call `say_ready`.
        alive: whether the service makes progress. The event loop asks every second.

        Raises UserError when the address cannot be bound.
        """
        self._names = tuple(service_names)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((*self._names, health_name, reflection.SERVICE_NAME), self.grpc_server)
        if not self.address:
            self.bind()
        await self.grpc_server.start()
        self.floods.port = int(self.address.rpartition(":")[2])
        self._tasks.append(asyncio.create_task(self.floods.watch(), name="floods"))
        if self._gate is not None:
            self._tasks.append(asyncio.create_task(self._gate.watch(), name="deny list"))
        self._health.set(("",), True)
        self._tasks.append(asyncio.create_task(self._follow(alive), name="liveness"))
        self._set_services(ready)
        return self.address

    async def say_ready(self) -> None:
        """Set the services to SERVING, unless the server is about to stop."""
        if not self._leaving:
            self._set_services(True)

    async def say_not_serving(self) -> None:
        """Report NOT_SERVING to health checks, so that no new clients connect. Calls still work until `stop`."""
        self._leaving = True
        self._health.set(("",), False)
        self._set_services(False)

    async def stop(self, grace_s: float) -> None:
        """Report NOT_SERVING and refuse new calls. Running calls have `grace_s` seconds, then they are canceled."""
        await self.say_not_serving()
        await self.grpc_server.stop(grace_s)
        await self._interceptor.finished(_HANDLERS_S)
        for task in self._tasks:
            task.cancel()

    async def _follow(self, alive: Callable[[], bool]) -> None:
        """Keep the health of the server as a whole equal to `alive`."""
        while not self._leaving:
            if alive() != self.alive:
                self.alive = not self.alive
                self._health.set(("",), self.alive)
                if self.alive:
                    _log.info("the service makes progress again: health is SERVING")
                else:
                    _log.error("the service makes no progress: health is NOT_SERVING until it does")
            await asyncio.sleep(_LIFE_PERIOD_S)

    def _set_services(self, serving: bool) -> None:
        self.serving = serving
        self._health.set(self._names, serving)


def _server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    renewal = Renewal(certificates)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """gRPC calls this on its own thread before the handshake of each new connection."""
        renewed = renewal.poll()
        return None if renewed is None else _configuration(renewed)

    return grpc.dynamic_ssl_server_credentials(_configuration(certificates), fetch, require_client_authentication=True)


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificates.key, certificates.certificate)], root_certificates=certificates.authority
    )
