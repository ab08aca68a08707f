"""Work that is too slow, that has lost its caller, or that hangs."""

import asyncio
import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actorq.config.run_config import RunConfig
from actorq.domain.policy import Checkpoint, Policy, Variant
from actorq.errors import InvalidInputError, NotFoundError, UnavailableError
from actorq.process import EXIT_HUNG
from actorq.telemetry.process_stats import measure_process
from actorq.transport.server import Server
from actorq.watchdog import Watchdog
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.inference import open_session, run_session
from quantizer_service.emission.job import Job, OverdueError, current_job
from quantizer_service.process import QuantizerProcess
from quantizer_service.serving.policy_stream import EncodedPolicy, policy_messages
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.serving.worker import Worker
from quantizer_service.store.store import PolicyStore
from tests.builders.processors import INT8_HERE
from tests.quantizer_service.hostile_graphs import squares
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint

SOURCE = mlp(8, 8)
DEADLINE_S = 60.0
# More than an hour on one core, in steps of a few milliseconds.
LONG = squares(512, 2000)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def run_for_long() -> object:
    session = open_session(LONG.model, "graph")
    feeds = {"observation": np.zeros((2, 5), np.float32), "weight": np.zeros((5, 3), np.float32)}
    return [run_session(session, feeds, 2, "graph", ()) for _ in range(1000)]


def test_a_run_is_ended_at_its_limit_and_the_next_work_is_done() -> None:
    async def scenario() -> None:
        worker = Worker(0.2)
        with pytest.raises(OverdueError, match=r"0\.2 s .*quantizer\.work_limit_s"):
            await worker.do(run_for_long)
        assert worker.cancelled == 1
        assert await worker.do(lambda: "next") == "next"
        assert worker.cancelled == 1
        assert worker.busy_s == 0.0

    asyncio.run(scenario())


def test_the_limit_counts_from_when_work_begins() -> None:
    """Of two that wait together the second has its whole time."""

    async def scenario() -> None:
        clock = [0.0]
        worker = Worker(10.0, clock=lambda: clock[0])
        release, begun = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            release.wait(DEADLINE_S)

        first = asyncio.ensure_future(worker.do(wait))
        second = asyncio.ensure_future(worker.do(lambda: current_job().check()))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        clock[0] = 9.0
        assert worker.busy_s == 9.0
        release.set()
        await first
        await second
        assert worker.cancelled == 0

    asyncio.run(scenario())


def test_closing_waits_for_accepted_work_and_accepts_no_more() -> None:
    async def scenario() -> None:
        worker, goes_on, done = Worker(DEADLINE_S), threading.Event(), []
        running = asyncio.create_task(worker.do(goes_on.wait))
        waiting = asyncio.create_task(worker.do(lambda: done.append("stored")))
        await asyncio.wait([running, waiting], timeout=0)
        closing = asyncio.create_task(worker.close())
        await asyncio.wait([closing], timeout=0)
        with pytest.raises(UnavailableError, match="draining"):
            await worker.do(lambda: done.append("late"))
        assert not closing.done()
        goes_on.set()
        await closing
        assert done == ["stored"]
        await asyncio.gather(running, waiting)

    asyncio.run(scenario())


def test_work_without_a_job_has_no_limit() -> None:
    current_job().check()
    Job().cancel("another's")
    current_job().check()


def test_a_cancelled_job_begins_no_run() -> None:
    job = Job()
    session = open_session(SOURCE.model, "graph")
    job.cancel("too long")

    with job.current(), pytest.raises(OverdueError, match="too long"):
        run_session(session, {}, 2, "graph", ())
    with job.current(), pytest.raises(OverdueError, match="too long"):
        open_session(SOURCE.model, "graph")


def test_work_that_hangs_ends_the_process() -> None:
    async def scenario() -> None:
        ended: list[int] = []
        clock = [0.0]
        dog = Watchdog("the thread that quantizes", "quantizer.work_limit_s", 20.0, ended.append, lambda: clock[0])
        worker = Worker(10.0, dog.watch())
        release, begun = threading.Event(), threading.Event()

        def hang() -> None:
            begun.set()
            release.wait(DEADLINE_S)

        hanging = asyncio.ensure_future(worker.do(hang))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        clock[0] = 20.0
        dog.check()
        assert ended == []
        clock[0] = 20.5
        dog.check()
        assert ended == [EXIT_HUNG]
        release.set()
        await hanging
        clock[0] = 100.0
        dog.check()
        assert ended == [EXIT_HUNG]

    asyncio.run(scenario())


def test_health_follows_the_workers_progress(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = [0.0]
        worker = Worker(10.0, clock=lambda: clock[0])
        process = QuantizerProcess(tmp_path, RunConfig(), "quantizer", worker=worker)
        server = Server("127.0.0.1:0")
        address = await server.start(process.register(server.grpc_server), alive=process.alive)
        release, begun = threading.Event(), threading.Event()

        def hang() -> None:
            begun.set()
            release.wait(DEADLINE_S)

        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            watch = aiter(health.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S))
            hanging = asyncio.ensure_future(worker.do(hang))
            await asyncio.to_thread(begun.wait, DEADLINE_S)
            clock[0] = 10.0
            assert process.alive()
            assert (await anext(watch)).status == SERVING
            clock[0] = 10.1
            assert (await anext(watch)).status == NOT_SERVING
            release.set()
            await hanging
            assert (await anext(watch)).status == SERVING
        process.begin_drain()
        await process.run(address)
        await server.stop(grace_s=0.0)

    asyncio.run(scenario())


def quantizer_at(path: Path, worker: Worker) -> Quantizer:
    emitter = Emitter(PolicyStore(path, retain_newest=4, retain_best=1))
    emitter.catalog.claim("run")
    emitter.add_graph(SOURCE)
    resources = partial(measure_process, "quantizer", "quantizer")
    return Quantizer(emitter, resources, worker=worker)


def test_a_waiting_version_is_not_emitted_after_its_publisher_has_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = Worker(DEADLINE_S)
        quantizer = quantizer_at(tmp_path, worker)
        release, begun = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            release.wait(DEADLINE_S)

        busy = asyncio.ensure_future(worker.do(wait))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        gone = asyncio.ensure_future(quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        release.set()
        await busy
        assert (await quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0)).version == 1

    asyncio.run(scenario())


def test_a_publication_does_not_wait_for_all_readers_before_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = Worker(DEADLINE_S)
        quantizer = quantizer_at(tmp_path, worker)
        for version in (1, 2):
            await quantizer.publish(checkpoint(SOURCE, version), "int8", 0.0)
        release, begun = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            release.wait(DEADLINE_S)

        busy = asyncio.ensure_future(worker.do(wait))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        reading = (quantizer.get(Variant("int8"), 1), quantizer.describe("int8", 1), quantizer.list_versions(10, ""))
        readers = [asyncio.ensure_future(each) for each in (*reading, *(quantizer.hold(1, 1.0) for _ in range(20)))]
        await asyncio.sleep(0)
        publication = asyncio.ensure_future(quantizer.publish(checkpoint(SOURCE, 3), "int8", 0.0))
        await asyncio.sleep(0)
        release.set()
        await publication
        assert sum(each.done() for each in readers) < 5
        await asyncio.gather(busy, *readers)

    asyncio.run(scenario())


def test_watchers_that_come_at_once_have_a_policy_emitted_and_encoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []

    def encode(policy: Policy) -> EncodedPolicy:
        encoded.append(policy.descriptor.scheme)
        return EncodedPolicy(policy.descriptor, policy_messages(policy))

    async def scenario() -> None:
        quantizer = quantizer_at(tmp_path, Worker(DEADLINE_S))
        await quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0)
        monkeypatch.setattr(EncodedPolicy, "of", encode)
        watchers = await asyncio.gather(*(quantizer.watch(Variant("fp32"), 0) for _ in range(20)))
        found = [await watcher.next() for watcher in watchers]
        assert {policy.descriptor.version for policy in found if policy} == {1}

    asyncio.run(scenario())
    assert encoded == ["fp32"]


def test_a_version_is_served_and_stored_if_its_publisher_leaves_during_the_emission(tmp_path: Path) -> None:
    class Waiting(Emitter):
        def publish(self, checkpoint: Checkpoint, *arguments: Any) -> tuple[Policy, ...]:
            begun.set()
            release.wait(DEADLINE_S)
            return super().publish(checkpoint, *arguments)

    release, begun = threading.Event(), threading.Event()

    async def scenario() -> None:
        store = PolicyStore(tmp_path, retain_newest=4, retain_best=1)
        emitter = Waiting(store)
        emitter.catalog.claim("run")
        emitter.add_graph(SOURCE)
        quantizer = Quantizer(emitter, partial(measure_process, "quantizer", "quantizer"))
        going = asyncio.ensure_future(quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        release.set()
        await quantizer.settle()
        assert store.versions()[0].version == 1
        assert await quantizer.get(INT8_HERE)

    asyncio.run(scenario())


def test_work_that_fails_after_its_caller_has_left_leaves_nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the caller is garbage-collected, as gRPC does with a call after a disconnect."""

    async def scenario() -> None:
        worker = Worker(DEADLINE_S)
        release, begun = threading.Event(), threading.Event()

        def fail() -> None:
            begun.set()
            release.wait(DEADLINE_S)
            raise NotFoundError("version 6 is not retained")

        gone = worker.do(fail)
        gone.send(None)
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        gone.close()
        leaving = asyncio.ensure_future(worker.do(fail))
        await asyncio.sleep(0)
        leaving.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await worker.do(lambda: None)

    asyncio.run(scenario())
    gc.collect()
    assert caplog.messages == []


def test_a_version_that_is_refused_after_its_publisher_has_gone_leaves_nothing_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(Emitter):
        def publish(self, checkpoint: Checkpoint, *arguments: Any) -> tuple[Policy, ...]:
            begun.set()
            release.wait(DEADLINE_S)
            raise InvalidInputError("weights: must be finite")

    release, begun = threading.Event(), threading.Event()

    async def scenario() -> None:
        emitter = Refusing(PolicyStore(tmp_path, retain_newest=4, retain_best=1))
        quantizer = Quantizer(emitter, partial(measure_process, "quantizer", "quantizer"))
        going = asyncio.ensure_future(quantizer.publish(checkpoint(SOURCE, 1), "int8", 0.0))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        release.set()
        await quantizer.worker.do(lambda: None)

    asyncio.run(scenario())
    gc.collect()
    assert caplog.messages == []
