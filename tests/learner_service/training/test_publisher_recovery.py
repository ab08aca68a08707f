"""The messages that the publisher repeats after a broken stream, with a quantizer that a test scripts."""

import asyncio
import logging
import queue
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.contract import CONTRACT
from actorq.domain.status import Receipt
from actorq.errors import ConflictError, ExhaustedError, InvalidInputError, UnavailableError
from actorq.statefiles.highwater import HighWaterMark
from actorq.telemetry.process_stats import measure_process
from actorq.transport.server import Server
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from learner_service.training.publisher import Publisher
from tests.learner_service.learner_parts import evaluation
from tests.learner_service.learner_servers import DEADLINE_S
from tests.learner_service.training.test_publisher import policy_graph, snapshot

Sent = tuple[str, int]


class ScriptedQuantizer(quantizer_pb2_grpc.QuantizerServiceServicer):
    """Records the publisher's messages on one stream at a time, and sends the answers of the test."""

    def __init__(self) -> None:
        self._sent: queue.Queue[Sent] = queue.Queue()
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = Future()
        self._commands: asyncio.Queue[Any] = asyncio.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="quantizer")
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it serves."""
        return self._started.result(DEADLINE_S)[2]

    def ready(self, newest_version: int) -> None:
        """Send the newest version. The quantizer knows every graph."""
        message = quantizer_pb2.PublishReady(
            newest_version=newest_version, graph_digests=[policy_graph().digest], contract=CONTRACT
        )
        self._tell(quantizer_pb2.PublishCheckpointsResponse(ready=message))

    def receipt(self, version: int) -> None:
        """Say that a version was received."""
        receipt = Receipt(version, (), 0.001, 0, measure_process("quantizer", "quantizer"))
        self._tell(quantizer_pb2.PublishCheckpointsResponse(receipt=wire.receipt_to_proto(receipt)))

    def answer(self, receipt: quantizer_pb2.Receipt) -> None:
        """Send this receipt."""
        self._tell(quantizer_pb2.PublishCheckpointsResponse(receipt=receipt))

    def fail(self, error: Exception) -> None:
        """Break the stream."""
        self._tell(error)

    def received(self, count: int) -> list[Sent]:
        """Wait for this number of messages. Returns the kind of each, and its version or an evaluation's sequence."""
        return [self._sent.get(timeout=DEADLINE_S) for _ in range(count)]

    def close(self) -> None:
        """Stop serving."""
        loop, stop, _ = self._started.result(DEADLINE_S)
        loop.call_soon_threadsafe(stop.set)
        self._thread.join(DEADLINE_S)

    async def PublishCheckpoints(  # noqa: N802
        self, request_iterator: AsyncIterator[quantizer_pb2.PublishCheckpointsRequest], context: Any
    ) -> AsyncIterator[quantizer_pb2.PublishCheckpointsResponse]:
        """Record and answer."""
        self._commands = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, self._commands))
        try:
            while (command := await self._commands.get()) is not None:
                if isinstance(command, Exception):
                    raise command
                yield command
        finally:
            reader.cancel()

    async def _read(
        self, requests: AsyncIterator[quantizer_pb2.PublishCheckpointsRequest], commands: asyncio.Queue[Any]
    ) -> None:
        async for request in requests:
            match request.WhichOneof("payload"):
                case "open":
                    self._sent.put(("open", 0))
                case "checkpoint":
                    self._sent.put(("checkpoint", request.checkpoint.version))
                case "evaluation":
                    self._sent.put(("evaluation", request.evaluation.sequence))
        commands.put_nowait(None)

    async def _serve(self) -> None:
        server, stop = Server("127.0.0.1:0"), asyncio.Event()
        quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server(self, server.grpc_server)
        self._started.set_result((asyncio.get_running_loop(), stop, await server.start(())))
        await stop.wait()
        await server.stop(grace_s=0.0)

    def _tell(self, command: Any) -> None:
        loop, _, _ = self._started.result(DEADLINE_S)
        loop.call_soon_threadsafe(lambda: self._commands.put_nowait(command))


@pytest.fixture
def quantizer() -> Iterator[ScriptedQuantizer]:
    peer = ScriptedQuantizer()
    yield peer
    peer.close()


@pytest.fixture
def publisher(quantizer: ScriptedQuantizer) -> Iterator[Publisher]:
    """It has offered version 1 and opened its stream."""
    with QuantizerClient(quantizer.address) as client:
        publisher = Publisher(client, wire.Opening("run", "int8"), lambda _: None)
        publisher.offer(snapshot(1))
        publisher.start(policy_graph())
        assert quantizer.received(1) == [("open", 0)]
        yield publisher
        publisher.close()


BROKEN = UnavailableError("as the test wants it")


def test_an_evaluation_that_was_sent_but_not_confirmed_is_sent_again(
    quantizer: ScriptedQuantizer, publisher: Publisher
) -> None:
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 1)]
    for sequence in (1, 2):
        publisher.evaluated(evaluation(sequence, 1, 10.0))
    assert quantizer.received(2) == [("evaluation", 1), ("evaluation", 2)]
    # This does not confirm messages that were sent after version 1.
    quantizer.receipt(1)
    assert publisher.flush(DEADLINE_S)
    quantizer.fail(BROKEN)
    assert quantizer.received(1) == [("open", 0)]
    publisher.evaluated(evaluation(3, 1, 10.0))
    quantizer.ready(1)
    assert quantizer.received(3) == [("evaluation", sequence) for sequence in (1, 2, 3)]
    # The receipt of a later version does.
    publisher.offer(snapshot(2))
    assert quantizer.received(1) == [("checkpoint", 2)]
    quantizer.receipt(2)
    assert publisher.flush(DEADLINE_S)
    quantizer.fail(BROKEN)
    assert quantizer.received(1) == [("open", 0)]
    quantizer.ready(2)
    publisher.offer(snapshot(3))
    assert quantizer.received(1) == [("checkpoint", 3)]
    assert publisher.fault is None


def test_a_version_that_was_not_received_is_sent_again_under_a_number_that_was_never_sent(
    quantizer: ScriptedQuantizer, publisher: Publisher
) -> None:
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 1)]
    quantizer.fail(BROKEN)
    assert quantizer.received(1) == [("open", 0)]
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 2)]
    assert publisher.version == 2


def test_a_learner_that_was_killed_sends_no_number_again_although_the_quantizers_store_is_empty(
    quantizer: ScriptedQuantizer, tmp_path: Path
) -> None:
    path = tmp_path / "published.json"
    sent = 0
    for _ in range(3):
        # What a learner finds that is started after another one was killed: its mark, and no newer checkpoint.
        mark = HighWaterMark(path, 0)
        assert mark.floor >= sent
        with QuantizerClient(quantizer.address) as client:
            publisher = Publisher(client, wire.Opening("run", "int8"), lambda _: None, mark.floor + 1, mark)
            publisher.offer(snapshot(1))
            publisher.start(policy_graph())
            assert quantizer.received(1) == [("open", 0)]
            quantizer.ready(0)
            ((_, version),) = quantizer.received(1)
            found = shutil.copy(path, tmp_path / "found.json")
            publisher.close()
        assert version > sent
        sent = version
        shutil.copy(found, path)


def test_a_version_whose_number_cannot_be_stored_is_not_sent_before_the_disk_takes_it(
    quantizer: ScriptedQuantizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / ".published.json.partial"
    in_the_way.mkdir()
    mark = HighWaterMark(tmp_path / "published.json", 0)
    with QuantizerClient(quantizer.address) as client:
        publisher = Publisher(client, wire.Opening("run", "int8"), lambda _: None, mark=mark)
        publisher.offer(snapshot(1))
        publisher.start(policy_graph())
        assert quantizer.received(1) == [("open", 0)]
        quantizer.ready(0)
        # Each time the stream ends, and the next one begins.
        for _ in range(2):
            assert quantizer.received(1) == [("open", 0)]
            quantizer.ready(0)
        assert quantizer.received(1) == [("open", 0)]
        assert "cannot be stored" in publisher.problem
        in_the_way.rmdir()
        quantizer.ready(0)
        # It was not sent, so its number is free.
        assert quantizer.received(1) == [("checkpoint", 1)]
        quantizer.receipt(1)
        assert publisher.flush(DEADLINE_S)
        assert (publisher.problem, publisher.fault) == ("", None)
        publisher.close()
    assert caplog.text.count("cannot be stored") == 1


def test_a_version_that_the_quantizer_cannot_store_is_a_problem_until_one_is_stored(
    quantizer: ScriptedQuantizer, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for version in (1, 2, 3):
        quantizer.ready(0)
        assert quantizer.received(1) == [("checkpoint", version)]
        quantizer.fail(UnavailableError("store: cannot write /store (No space left on device)"))
        assert quantizer.received(1) == [("open", 0)]
        assert "No space left on device" in publisher.problem
    assert caplog.text.count("No space left on device") == 1
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 4)]
    quantizer.receipt(4)
    assert publisher.flush(DEADLINE_S)
    assert (publisher.problem, publisher.fault) == ("", None)


def test_a_quantizer_far_ahead_is_retried_and_ends_nothing(quantizer: ScriptedQuantizer, publisher: Publisher) -> None:
    quantizer.ready(2**63)
    assert quantizer.received(1) == [("open", 0)]
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 1)]
    assert publisher.fault is None


def test_a_refused_version_is_not_sent_again_and_the_next_one_is(
    quantizer: ScriptedQuantizer, publisher: Publisher
) -> None:
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 1)]
    quantizer.fail(InvalidInputError("checkpoint: parameters must be finite"))
    assert quantizer.received(1) == [("open", 0)]
    quantizer.ready(0)
    for sequence in (1, 2):
        # A version that is due would be sent between two evaluations.
        publisher.evaluated(evaluation(sequence, 1, 10.0))
        assert quantizer.received(1) == [("evaluation", sequence)]
    publisher.offer(snapshot(2))
    assert quantizer.received(1) == [("checkpoint", 2)]
    assert publisher.fault is None


def test_a_conflict_before_the_quantizer_is_ready_is_a_fault(
    quantizer: ScriptedQuantizer, publisher: Publisher
) -> None:
    quantizer.fail(ConflictError("the store holds run 'other'"))
    assert not publisher.flush(threading.TIMEOUT_MAX)
    assert isinstance(publisher.fault, ConflictError)
    assert not publisher.connected


def test_a_quantizer_that_is_full_or_answers_rubbish_is_retried(
    quantizer: ScriptedQuantizer, publisher: Publisher
) -> None:
    quantizer.fail(ExhaustedError("this service takes at most 1 open calls at a time; try again later"))
    assert quantizer.received(1) == [("open", 0)]
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 1)]
    quantizer.answer(quantizer_pb2.Receipt(version=2**63))
    assert quantizer.received(1) == [("open", 0)]
    quantizer.ready(0)
    # A number is sent once.
    assert quantizer.received(1) == [("checkpoint", 2)]
    assert publisher.fault is None


def test_a_conflict_over_a_version_opens_the_stream_again(quantizer: ScriptedQuantizer, publisher: Publisher) -> None:
    quantizer.ready(0)
    assert quantizer.received(1) == [("checkpoint", 1)]
    # The stream broke before, and the quantizer had received the version that the learner counts as unsent.
    quantizer.fail(ConflictError("checkpoint: expected a version above 1, got 1"))
    assert quantizer.received(1) == [("open", 0)]
    quantizer.ready(1)
    publisher.offer(snapshot(2))
    assert quantizer.received(1) == [("checkpoint", 2)]
    quantizer.receipt(2)
    assert publisher.flush(DEADLINE_S)
    assert publisher.fault is None


def test_closing_ends_a_flush(publisher: Publisher) -> None:
    flushed: queue.Queue[bool] = queue.Queue()
    flushing = threading.Thread(target=lambda: flushed.put(publisher.flush(threading.TIMEOUT_MAX)), daemon=True)
    flushing.start()
    publisher.close()
    assert not flushed.get(timeout=DEADLINE_S)
