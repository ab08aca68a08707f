"""`python -m quantizer_service`: one quantizer, as pods and the launcher run it."""

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import grpc
from prometheus_client import Metric
from pydantic import Field

from actorq.config import RunConfig
from actorq.process import EXIT_OK, ProcessSettings, main, parse_arguments, run_process
from actorq.settings import Settings
from actorq.telemetry.process_stats import measure_process
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from quantizer_service.emitter import Emitter
from quantizer_service.metrics import quantizer_metrics
from quantizer_service.quantizer import Quantizer
from quantizer_service.reader import PolicyReader
from quantizer_service.servicer import Messages, QuantizerServicer, policy_messages
from quantizer_service.store import PolicyStore


class QuantizerProcessSettings(Settings):
    """Where the policies lie."""

    store: Path = Field(Path("policies"), description="folder of the policies of one run; made when missing")
    read_only: bool = Field(
        False, description="serve the store as it is and change nothing in it; another quantizer may be writing there"
    )


class QuantizerProcess:
    """Serves one store until it is drained."""

    def __init__(self, store: Path, config: RunConfig, name: str, read_only: bool = False, node: str = "") -> None:
        self._directory = store
        self._read_only = read_only
        self._config = config.quantizer
        self._name = name
        self._node = node
        self._store: PolicyReader
        self._quantizer: Quantizer[Messages]

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Open the store and add the servicer; raises UserError when the folder cannot be used."""
        self._store = self._open()
        self._quantizer = Quantizer(
            Emitter(self._store, self._config),
            partial(policy_messages, quantizer_pb2.WatchPoliciesResponse),
            partial(measure_process, self._name, "quantizer", self._node),
        )
        quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server(QuantizerServicer(self._quantizer), server)
        return (quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"].full_name,)

    async def run(self, address: str) -> int:
        """Serve until drained and all work that was taken is done."""
        await self._quantizer.draining.wait()
        await self._quantizer.settle()
        if isinstance(self._store, PolicyStore):
            self._store.close()
        return EXIT_OK

    def begin_drain(self) -> None:
        """End the streams; see Quantizer.begin_drain."""
        self._quantizer.begin_drain()

    def metrics(self) -> Iterable[Metric]:
        """What it emitted and for whom."""
        return quantizer_metrics(self._quantizer)

    def _open(self) -> PolicyReader:
        if self._read_only:
            return PolicyReader(self._directory)
        return PolicyStore(self._directory, self._config.retain_newest, self._config.retain_best)


def _run() -> int:
    models = (RunConfig, ProcessSettings, QuantizerProcessSettings)
    config, process, quantizer = parse_arguments(
        "actorq quantizer", "Emit quantized policies from a learner's checkpoints and serve them to actors.", models
    )
    assert isinstance(config, RunConfig)
    assert isinstance(process, ProcessSettings)
    assert isinstance(quantizer, QuantizerProcessSettings)
    name = process.name or f"{platform.node()}-{os.getpid()}"
    service = QuantizerProcess(quantizer.store, config, name, quantizer.read_only, process.node)
    return run_process(service, process, name, config, "quantizer")


if __name__ == "__main__":
    sys.exit(main(_run))
