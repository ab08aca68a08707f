"""A real server on a real socket with a learner whose behavior a test chooses."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from actorq.transport.calls import CallCounts
from actorq.transport.options import Certificates, ServerLimits
from actorq.transport.security.access import Access
from actorq.transport.server import Server
from actorq.v1 import learner_pb2, learner_pb2_grpc

TIMEOUT_S = 20.0
SERVICE_NAME = "actorq.v1.LearnerService"

T = TypeVar("T")


async def nothing() -> None:
    """The default behavior of a learner."""


class StagedLearner(learner_pb2_grpc.LearnerServiceServicer):
    """Calls `act` in every method. In streams, after one good answer."""

    def __init__(self, act: Callable[[], Coroutine[Any, Any, None]] = nothing, path: str = "") -> None:
        self._act = act
        self._path = path
        self.cancelled = threading.Event()

    async def GetStatus(self, request: learner_pb2.GetStatusRequest, context: object) -> learner_pb2.GetStatusResponse:
        await self._act()
        return learner_pb2.GetStatusResponse(status=running())

    async def WatchStatus(
        self, request: learner_pb2.WatchStatusRequest, context: object
    ) -> AsyncIterator[learner_pb2.WatchStatusResponse]:
        try:
            yield learner_pb2.WatchStatusResponse(status=running())
            await self._act()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def StreamTrajectories(
        self, request_iterator: AsyncIterator[learner_pb2.StreamTrajectoriesRequest], context: object
    ) -> AsyncIterator[learner_pb2.StreamTrajectoriesResponse]:
        async for _ in request_iterator:
            yield learner_pb2.StreamTrajectoriesResponse()
            await self._act()

    async def SaveCheckpoint(
        self, request: learner_pb2.SaveCheckpointRequest, context: object
    ) -> learner_pb2.SaveCheckpointResponse:
        return learner_pb2.SaveCheckpointResponse(path=self._path)

    async def Join(self, request: learner_pb2.JoinRequest, context: object) -> learner_pb2.JoinResponse:
        run = learner_pb2.RunSpec(
            run_id=request.actor_name,
            environment_id="CartPole-v1",
            environments_per_actor=1,
            segment_length=1,
            queue_segments=1,
            scheme="int8",
            evaluation_episodes=1,
        )
        return learner_pb2.JoinResponse(run=run)


class Flood(StagedLearner):
    """Sends more statuses than a client that does not read can get."""

    async def WatchStatus(
        self, request: learner_pb2.WatchStatusRequest, context: object
    ) -> AsyncIterator[learner_pb2.WatchStatusResponse]:
        while True:
            yield learner_pb2.WatchStatusResponse(status=learner_pb2.RunStatus(run_id="r" * 2**20))


class WritingFlood(StagedLearner):
    """As `Flood`, but its method writes to the context instead of yielding."""

    async def WatchStatus(self, request: learner_pb2.WatchStatusRequest, context: Any) -> None:  # type: ignore[override]
        while True:
            await context.write(learner_pb2.WatchStatusResponse(status=learner_pb2.RunStatus(run_id="r" * 2**20)))


def running() -> learner_pb2.RunStatus:
    return learner_pb2.RunStatus(run_id="run", state=learner_pb2.RUN_STATE_TRAINING)


class Stage:
    """The server's address, and its event loop for work that must happen there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self._loop = loop
        self.server = server
        self.address = server.address

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def perform(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.begin(coroutine).result(TIMEOUT_S)


@contextmanager
def serving(
    servicer: object,
    certificates: Certificates | None = None,
    add: Callable[[Any, Any], None] = learner_pb2_grpc.add_LearnerServiceServicer_to_server,
    service_name: str = SERVICE_NAME,
    calls: CallCounts | None = None,
    limits: ServerLimits | None = None,
    access: Access | None = None,
    address: str = "127.0.0.1:0",
) -> Iterator[Stage]:
    """Serve on another thread until the block ends: a learner, or the services that `add` adds."""
    started: Future[Stage] = Future()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        server = Server(address, certificates, calls, limits, access)
        add(servicer, server.grpc_server)
        try:
            await server.start([service_name])
        except BaseException as error:
            started.set_exception(error)
            raise
        started.set_result(Stage(loop, server))
        await done.wait()
        await server.stop(grace_s=0.0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="stage")
    thread.start()
    try:
        yield started.result(TIMEOUT_S)
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(TIMEOUT_S)
        loop.close()
