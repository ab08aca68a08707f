"""Two learners of one run, because its folder was copied or restored: one publishes, the other is refused for good."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from actorq.client import QuantizerClient
from actorq.domain.contract import CONTRACT
from actorq.domain.lineage import UNCHECKED, Lineage
from actorq.errors import ConflictError, UnavailableError
from actorq.v1 import quantizer_pb2
from quantizer_service.serving.publishers import Publishers, Turn
from quantizer_service.serving.worker import Worker
from tests.quantizer_service.emission.test_high_water import ready
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import SOURCE, Publisher, running_quantizer

SUPERSEDED = "another learner"


def turn(*processes: int, epoch: int = 0) -> Turn:
    made = Turn()
    made.learner = Lineage(epoch, processes)
    return made


@asynccontextmanager
async def publishers(store: Path, patience_s: float = 0.0) -> AsyncIterator[tuple[Publishers, asyncio.Event]]:
    worker, draining = Worker(30.0), asyncio.Event()
    try:
        yield Publishers(ready(store).catalog, worker, draining, patience_s), draining
    finally:
        await worker.close()


def test_a_copy_of_the_publisher_is_refused_permanently_and_the_publisher_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with publishers(tmp_path) as (found, _):
            first = turn(1)
            await found.admit("run", first)
            with pytest.raises(ConflictError, match=SUPERSEDED):
                await found.admit("run", turn(1, 20))
            assert not first.replaced.is_set()
            first.ended.set()
            # The publisher restarts, and the copy tries again and again.
            with pytest.raises(ConflictError, match=SUPERSEDED):
                await found.admit("run", turn(1, 20, 21))
            await found.admit("run", turn(1, 2))
            assert found.refused == 2

    asyncio.run(scenario())


def test_the_next_process_waits_for_the_end_of_the_previous_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with publishers(tmp_path, patience_s=60.0) as (found, _):
            first, second = turn(1), turn(1, 2)
            await found.admit("run", first)
            waiting = asyncio.create_task(found.admit("run", second))
            done, _ = await asyncio.wait((waiting,), timeout=0.2)
            assert not done
            first.ended.set()
            await waiting
            # Of two that have waited, the second finds that the first has continued.
            with pytest.raises(ConflictError, match=SUPERSEDED):
                await found.admit("run", turn(1, 3))

    asyncio.run(scenario())


def test_a_drain_ends_the_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with publishers(tmp_path, patience_s=60.0) as (found, draining):
            await found.admit("run", turn(1))
            waiting = asyncio.create_task(found.admit("run", turn(1, 2)))
            await asyncio.sleep(0)
            draining.set()
            with pytest.raises(UnavailableError, match="draining"):
                await waiting

    asyncio.run(scenario())


def test_a_restored_learner_takes_over_at_once_and_the_other_is_told_to_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with publishers(tmp_path, patience_s=60.0) as (found, _):
            first = turn(1)
            await found.admit("run", first)
            await found.admit("run", turn(9, epoch=4))
            assert first.replaced.is_set()
            assert isinstance(first.reason(), ConflictError)
            with pytest.raises(ConflictError, match=SUPERSEDED):
                await found.admit("run", turn(1, 2))

    asyncio.run(scenario())


def test_a_learner_without_a_lineage_replaces_the_previous_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with publishers(tmp_path) as (found, _):
            first, second = turn(), turn()
            assert first.learner == UNCHECKED
            await found.admit("run", first)
            await found.admit("run", second)
            assert isinstance(first.reason(), UnavailableError)
            await found.admit("run", turn(1))
            assert isinstance(second.reason(), UnavailableError)

    asyncio.run(scenario())


def opening(*processes: int, epoch: int = 0) -> quantizer_pb2.PublishOpen:
    return quantizer_pb2.PublishOpen(run_id="run", scheme="int8", epoch=epoch, lineage=processes, contract=CONTRACT)


def opened(client: QuantizerClient, message: quantizer_pb2.PublishOpen) -> Publisher:
    publisher = Publisher(client)
    publisher.send(open=message)
    assert publisher.answer().ready is not None
    return publisher


def test_over_the_wire_the_lower_epoch_gets_an_error_and_versions_continue(tmp_path: Path) -> None:
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        first = opened(client, opening(1))
        first.send_graph(SOURCE)
        first.publish(checkpoint(SOURCE, 1))
        restored = opened(client, opening(5, epoch=3))
        with pytest.raises(grpc.RpcError) as ended:
            first.answer()
        assert ended.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "actorq restore" in ended.value.details()
        assert restored.publish(checkpoint(SOURCE, 2)).version == 2
        restored.close()
    # Also after a restart of the quantizer.
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        with pytest.raises(grpc.RpcError) as refused:
            opened(client, opening(1, 2))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        opened(client, opening(5, 6, epoch=3)).close()


@pytest.mark.parametrize(
    "message",
    [opening(*range(65)), opening(1, epoch=2**31)],
    ids=["lineage", "epoch"],
)
def test_more_than_the_wire_allows_is_refused(tmp_path: Path, message: quantizer_pb2.PublishOpen) -> None:
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        with pytest.raises(grpc.RpcError) as refused:
            opened(client, message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
