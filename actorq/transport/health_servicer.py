"""The health service grpc.health.v1, which reports whether a server's services are serving.

grpcio's servicer holds a lock while it writes to a watcher. With it, a watcher that never reads could prevent a server
from reporting NOT_SERVING.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeAlias

from grpc_health.v1 import health_pb2, health_pb2_grpc

from actorq.errors import NotFoundError
from actorq.text import one_line

Status: TypeAlias = health_pb2.HealthCheckResponse.ServingStatus

_MOST_QUOTED_BYTES = 128


class Health(health_pb2_grpc.HealthServicer):
    """The status of each named service. The empty name is the server as a whole."""

    def __init__(self) -> None:
        self._statuses: dict[str, Status] = {}
        self._changed = asyncio.Event()

    def set(self, names: Iterable[str], serving: bool) -> None:
        """Set the status of these services. Never blocks."""
        response = health_pb2.HealthCheckResponse
        self._statuses.update(dict.fromkeys(names, response.SERVING if serving else response.NOT_SERVING))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """Whether a service is serving."""
        if request.service not in self._statuses:
            name = one_line(request.service, _MOST_QUOTED_BYTES)
            raise NotFoundError(f"service: expected one of {', '.join(filter(None, self._statuses))}, got '{name}'")
        return health_pb2.HealthCheckResponse(status=self._statuses[request.service])

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Whether a service is serving, now and after each change."""
        sent: Status | None = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != sent:
                sent = status
                yield health_pb2.HealthCheckResponse(status=status)
            await changed.wait()
