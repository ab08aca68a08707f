"""A real quantizer on a real socket, and a learner's side of the publishing stream, for the tests of this room."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.contract import CONTRACT
from actorq.domain.policy import Checkpoint, PolicyGraph
from actorq.domain.status import Receipt
from actorq.process import Service
from actorq.transport.payload.blobs import split_blob
from actorq.transport.server import Server
from actorq.v1 import quantizer_pb2
from quantizer_service.process import QuantizerProcess, RelayProcess
from quantizer_service.store.policy_files import encode_tensors
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint

DEADLINE_S = 30.0
# Of a whole stream. One that a test leaves open keeps pytest from ending.
STREAM_S = 90.0
SOURCE = mlp(16, 16)


def running_quantizer(
    store: Path, read_only: bool = False, listen: str = "127.0.0.1:0", **config: Any
) -> AbstractContextManager[str]:
    """Serve `store`, give the address, and drain at the end."""
    return running(QuantizerProcess(store, RunConfig(**config), "quantizer", read_only), listen)


def running_relay(upstream: str) -> AbstractContextManager[str]:
    """Relay what an upstream serves, give the address, and drain at the end."""
    return running(RelayProcess(upstream))


@contextmanager
def running(process: Service, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Run on its own event loop, return the address, and drain at the end."""
    started: Future[tuple[asyncio.AbstractEventLoop, str]] = Future()

    async def serve() -> int:
        server = Server(listen)
        try:
            address = await server.start(process.register(server.grpc_server), alive=process.alive)
        except BaseException as error:
            started.set_exception(error)
            raise
        started.set_result((asyncio.get_running_loop(), address))
        code = await process.run(address)
        await server.stop(grace_s=1.0)
        return code

    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(asyncio.run(serve())), name="service")
    thread.start()
    loop, address = started.result(DEADLINE_S)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(process.begin_drain)
        thread.join(DEADLINE_S)
        assert codes == [0]


class Publisher:
    """A learner's stream: sends given messages and waits for the answers."""

    def __init__(self, client: QuantizerClient) -> None:
        self._requests: queue.Queue[quantizer_pb2.PublishCheckpointsRequest | None] = queue.Queue()
        requests = iter(self._requests.get, None)
        self._responses = client.stub.PublishCheckpoints(requests, timeout=STREAM_S)

    def open(self, run_id: str = "run", scheme: str = "int8") -> quantizer_pb2.PublishReady:
        self.send(open=quantizer_pb2.PublishOpen(run_id=run_id, scheme=scheme, contract=CONTRACT))
        return self.answer().ready

    def send(self, **payload: Any) -> None:
        self._requests.put(quantizer_pb2.PublishCheckpointsRequest(**payload))

    def send_graph(self, source: PolicyGraph) -> None:
        header = quantizer_pb2.GraphHeader(digest=source.digest)
        self.send(graph=header)
        for part in split_blob(source.model):
            self.send(part=part)

    def send_checkpoint(self, checkpoint: Checkpoint, data: bytes | None = None) -> None:
        """Send a checkpoint, encoded as `data` if that is given."""
        header = quantizer_pb2.CheckpointHeader(
            version=checkpoint.version,
            learner_step=checkpoint.learner_step,
            graph_digest=checkpoint.graph_digest,
            snapshot_at=wire.timestamp_to_proto(checkpoint.snapshot_at),
        )
        self.send(checkpoint=header)
        for part in split_blob(data or encode_tensors(checkpoint), checkpoint.version):
            self.send(part=part)

    def publish(self, checkpoint: Checkpoint) -> Receipt:
        self.send_checkpoint(checkpoint)
        return wire.receipt_from_proto(self.answer().receipt)

    def answer(self) -> quantizer_pb2.PublishCheckpointsResponse:
        response: quantizer_pb2.PublishCheckpointsResponse = next(self._responses)
        return response

    def end(self) -> None:
        """End the stream, without waiting for the result."""
        self._requests.put(None)

    def close(self) -> None:
        """End the stream and wait until the quantizer has received everything."""
        self.end()
        assert list(self._responses) == []


def opened(client: QuantizerClient, versions: int = 0) -> Publisher:
    """A publisher that has sent its graph and this number of versions."""
    publisher = Publisher(client)
    publisher.open()
    publisher.send_graph(SOURCE)
    for version in range(1, versions + 1):
        publisher.publish(checkpoint(SOURCE, version))
    return publisher
