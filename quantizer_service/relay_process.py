"""The process of a relay: connects to its upstream and serves until it is drained."""

import asyncio
from collections.abc import Iterable, Sequence

import grpc
from prometheus_client import Metric

from actorq.client import QuantizerClient
from actorq.process import EXIT_OK, Service
from actorq.transport.options import Certificates
from quantizer_service.servicer import QuantizerServicer
from quantizer_service.serving.metrics import relay_metrics
from quantizer_service.serving.relay import Relay
from quantizer_service.serving.upstream import Upstream


class RelayProcess(Service):
    """Serves the policies of the quantizer or relay at `upstream` ("HOST:PORT")."""

    def __init__(self, upstream: str, certificates: Certificates | None = None) -> None:
        self._upstream = upstream
        self._certificates = certificates
        self._relay: Relay

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the servicer. Raises UserError when the upstream's address is invalid."""
        self._relay = Relay(Upstream(QuantizerClient(self._upstream, self._certificates)))
        return (QuantizerServicer(self._relay).register(server),)

    async def run(self, address: str) -> int:
        """Serve until drained. Raises an unexpected error of a stream from the upstream."""
        draining = asyncio.ensure_future(self._relay.draining.wait())
        try:
            await asyncio.wait((draining, self._relay.failed), return_when=asyncio.FIRST_COMPLETED)
            if self._relay.failed.done():
                self._relay.failed.result()
        finally:
            draining.cancel()
            await self._relay.settle()
        return EXIT_OK

    def begin_drain(self) -> None:
        """End the watchers' streams. See Relay.begin_drain."""
        self._relay.begin_drain()

    def metrics(self) -> Iterable[Metric]:
        """The relay's metrics."""
        return relay_metrics(self._relay)
