"""The quantizer's process: runs one quantizer or one relay, in a pod or for the launcher."""

import asyncio
import os
import platform
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import grpc
from prometheus_client import Metric
from pydantic import Field

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.config.settings import DefaultText, Settings
from actorq.errors import UserError
from actorq.process import EXIT_OK, ProcessSettings, Service, parse_arguments, run_process
from actorq.telemetry.process_stats import measure_process
from actorq.transport.options import Certificates
from actorq.watchdog import Watchdog
from quantizer_service.emission.emitter import Emitter
from quantizer_service.servicer import QuantizerServicer
from quantizer_service.serving.metrics import quantizer_metrics, relay_metrics
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.serving.relay import Relay
from quantizer_service.serving.upstream import Upstream
from quantizer_service.serving.worker import Worker
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore

# The part of the run's settings that the quantizer uses.
_READS = ("quantizer", "learner.quantization_aware_after", "telemetry.log_format", "transport")


class QuantizerProcessSettings(Settings):
    """The source of the policies: a store on disk or an upstream quantizer."""

    store: Path = Field(Path("policies"), description="folder for the policies of one run; created if missing")
    read_only: bool = Field(
        False, description="serve the store without changing it; another quantizer may be writing there"
    )
    upstream: Annotated[str, DefaultText("none")] = Field(
        "", description="HOST:PORT of a quantizer or relay; serve its policies instead of a store's (as a relay)"
    )


class QuantizerProcess(Service):
    """The process that serves one store until it is drained.

    worker: does the CPU work; None for a worker with a watchdog that ends a hanging process.
    """

    def __init__(
        self,
        store: Path,
        config: RunConfig,
        name: str,
        read_only: bool = False,
        node: str = "",
        worker: Worker | None = None,
    ) -> None:
        self._directory, self._read_only = store, read_only
        self._config = config.resolved_quantizer()
        self._measure = partial(measure_process, name, "quantizer", node)
        limit_s = self._config.work_limit_s
        self._watchdog = Watchdog("the thread that quantizes", "quantizer.work_limit_s", 2 * limit_s)
        self._worker = worker or Worker(limit_s, self._watchdog.watch())
        self._store: PolicyReader
        self._quantizer: Quantizer

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Open the store and add the servicer. Raises UserError when the folder is unusable."""
        config = self._config
        if self._read_only:
            self._store = PolicyReader(self._directory)
        else:
            self._store = PolicyStore(self._directory, config.retain_newest, config.retain_best, config.retain_every)
        self._quantizer = Quantizer(Emitter(self._store, config), self._measure, worker=self._worker)
        self._watchdog.start()
        return (QuantizerServicer(self._quantizer).register(server),)

    async def run(self, address: str) -> int:
        """Serve until drained and all accepted checkpoints are stored."""
        await self._quantizer.draining.wait()
        await self._quantizer.settle()
        self._watchdog.close()
        if isinstance(self._store, PolicyStore):
            self._store.close()
        return EXIT_OK

    def begin_drain(self) -> None:
        """See Quantizer.begin_drain."""
        self._quantizer.begin_drain()

    def alive(self) -> bool:
        """Whether the worker makes progress."""
        return self._worker.alive

    def metrics(self) -> Iterable[Metric]:
        """The quantizer's metrics."""
        return quantizer_metrics(self._quantizer)


class RelayProcess(Service):
    """Serves the policies of the quantizer or relay at `upstream` ("HOST:PORT")."""

    def __init__(self, upstream: str, certificates: Certificates | None = None) -> None:
        self._upstream, self._certificates = upstream, certificates
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
        """See Relay.begin_drain."""
        self._relay.begin_drain()

    def metrics(self) -> Iterable[Metric]:
        """The relay's metrics."""
        return relay_metrics(self._relay)


def run() -> int:
    """Run the quantizer or relay that the command line describes. Raises UserError for settings of both."""
    text = "Emit quantized policies from a learner's checkpoints and serve them, or relay another quantizer's policies."
    models = (RunConfig, ProcessSettings, QuantizerProcessSettings)
    config, process, quantizer = parse_arguments("actorq quantizer", text, models, reads=_READS)
    assert isinstance(config, RunConfig)
    assert isinstance(process, ProcessSettings)
    assert isinstance(quantizer, QuantizerProcessSettings)
    name = process.name or f"{platform.node()}-{os.getpid()}"
    if not quantizer.upstream:
        store = partial(QuantizerProcess, quantizer.store, config, name, quantizer.read_only, process.node)
        return run_process(store, process, name, config, "quantizer")
    of_a_store = {"store": "--store", "read_only": "--read-only"}
    if given := [flag for setting, flag in of_a_store.items() if setting in quantizer.model_fields_set]:
        raise UserError(f"--upstream: a relay has no store, got {' and '.join(given)} too; give only one of the two")
    relay = partial(RelayProcess, quantizer.upstream, config.transport.certificates_of("relay"))
    return run_process(relay, process, name, config, "relay")
