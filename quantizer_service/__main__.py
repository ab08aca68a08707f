"""The quantizer's process: `python -m quantizer_service --store DIR --listen HOST:PORT`."""

import os
import platform
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import grpc
from pydantic import Field

from actorq.config import RunConfig
from actorq.process import EXIT_OK, ProcessSettings, main, parse_arguments, run_process
from actorq.settings import Settings
from actorq.telemetry.process_stats import measure_process
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from quantizer_service.emitter import Emitter
from quantizer_service.quantizer import Quantizer
from quantizer_service.servicer import Messages, QuantizerServicer, watch_messages
from quantizer_service.store import PolicyStore


class QuantizerProcessSettings(Settings):
    """Where the policies lie; not part of the run's configuration."""

    store: Path = Field(Path("policies"), description="folder of the policies of one run; made when missing")


class QuantizerProcess:
    """Serves one store until it is drained."""

    def __init__(self, store: Path, config: RunConfig, name: str) -> None:
        self._directory = store
        self._config = config
        self._name = name
        self._quantizer: Quantizer[Messages]

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Open the store and add the servicer; raises UserError when the folder cannot be used."""
        retention = self._config.quantizer
        store = PolicyStore(self._directory, retention.retain_newest, retention.retain_best)
        self._quantizer = Quantizer(Emitter(store), watch_messages, partial(measure_process, self._name, "quantizer"))
        quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server(QuantizerServicer(self._quantizer), server)
        return (quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"].full_name,)

    async def run(self, address: str) -> int:
        """Serve until drained and all work that was taken is done."""
        await self._quantizer.draining.wait()
        await self._quantizer.settle()
        return EXIT_OK

    def begin_drain(self) -> None:
        """End the streams; see Quantizer.begin_drain."""
        self._quantizer.begin_drain()


def _run() -> int:
    models = (RunConfig, ProcessSettings, QuantizerProcessSettings)
    config, process, quantizer = parse_arguments("python -m quantizer_service", __doc__ or "", models)
    assert isinstance(config, RunConfig)
    assert isinstance(process, ProcessSettings)
    assert isinstance(quantizer, QuantizerProcessSettings)
    name = process.name or f"{platform.node()}-{os.getpid()}"
    return run_process(QuantizerProcess(quantizer.store, config, name), process, name, config)


if __name__ == "__main__":
    sys.exit(main(_run))
