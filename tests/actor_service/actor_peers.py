"""A learner and a quantizer that a test scripts: real servers on real sockets."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from actorq import wire
from actorq.domain.policy import Policy
from actorq.domain.status import Exploration, Membership, RunSpec
from actorq.domain.trajectory import Evaluation, PolicySpan, Segment
from actorq.errors import NotFoundError
from actorq.transport.payload.blobs import split_blob
from actorq.transport.server import Server
from actorq.v1 import learner_pb2, learner_pb2_grpc, quantizer_pb2, quantizer_pb2_grpc

DEADLINE_S = 30.0

R = TypeVar("R", quantizer_pb2.WatchPoliciesResponse, quantizer_pb2.GetPolicyResponse)


def membership(**changes: Any) -> Membership:
    """A place in a run of one CartPole per actor; `changes` are fields of its RunSpec."""
    # Every processor computes int8-weights correctly.
    run = RunSpec("run", "CartPole-v1", 1, 8, 2**20, 2, "int8-weights", 20, 250, 1_000.0, 0)
    return Membership(
        replace(run, **changes), 0, Exploration((0.1,), (0.2,)), resume_after_sequence=0, seed=7, incarnation=9
    )


class Scripted:
    """Answers one stream at a time, at `address`, with the arguments of `answer`, `fail` and `end`."""

    def __init__(self) -> None:
        self.address = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: asyncio.Queue[Any] = asyncio.Queue()

    def fail(self, error: Exception) -> None:
        """Break the stream with an error."""
        self._tell(error)

    def end(self) -> None:
        """End the stream in order."""
        self._tell(None)

    def _tell(self, command: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._commands.put_nowait, command)

    async def _script(self) -> AsyncIterator[Any]:
        while (command := await self._commands.get()) is not None:
            if isinstance(command, Exception):
                raise command
            yield command

    def _new_stream(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._commands = asyncio.Queue()


class ScriptedLearner(Scripted, learner_pb2_grpc.LearnerServiceServicer):
    """Records the messages of actors."""

    def __init__(self) -> None:
        super().__init__()
        self.opens: queue.Queue[learner_pb2.StreamOpen] = queue.Queue()
        self.items: queue.Queue[tuple[str, int]] = queue.Queue()
        self.segments: queue.Queue[Segment] = queue.Queue()
        self.evaluations: queue.Queue[Evaluation] = queue.Queue()
        self.membership = membership()
        self.reports: queue.Queue[learner_pb2.ActorReport] = queue.Queue()
        self.sent: queue.Queue[int] = queue.Queue()

    def answer(self, acknowledged: int = 0, credit: int = 0, **fields: Any) -> None:
        """Send an answer on the open stream."""
        self._tell(
            learner_pb2.StreamTrajectoriesResponse(
                acknowledged_sequence=acknowledged, credit_through_sequence=credit, **fields
            )
        )

    def opened(self) -> learner_pb2.StreamOpen:
        """Wait for the next stream."""
        return self.opens.get(timeout=DEADLINE_S)

    def received(self, count: int) -> list[tuple[str, int]]:
        """Wait for this number of segments and evaluations. Returns the kind and the sequence of each."""
        return [self.items.get(timeout=DEADLINE_S) for _ in range(count)]

    def evaluation(self) -> Evaluation:
        """Wait for the next evaluation."""
        return self.evaluations.get(timeout=DEADLINE_S)

    async def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        """Answer with `membership`."""
        return wire.membership_to_proto(self.membership)

    async def StreamTrajectories(  # noqa: N802
        self, request_iterator: AsyncIterator[learner_pb2.StreamTrajectoriesRequest], context: Any
    ) -> AsyncIterator[learner_pb2.StreamTrajectoriesResponse]:
        """Record the messages, and answer as the test says."""
        self._new_stream()
        reader = asyncio.create_task(self._read(request_iterator, self._commands))
        try:
            async for response in self._script():
                yield response
        finally:
            reader.cancel()

    async def _read(
        self, requests: AsyncIterator[learner_pb2.StreamTrajectoriesRequest], commands: asyncio.Queue[Any]
    ) -> None:
        async for request in requests:
            match request.WhichOneof("payload"):
                case "open":
                    self.opens.put(request.open)
                case "report":
                    self.reports.put(request.report)
                    self.sent.put(request.sent_sequence)
                case "segment":
                    segment = wire.segment_from_proto(request.segment)
                    self.segments.put(segment)
                    self.items.put(("segment", segment.sequence))
                case "evaluation":
                    self.items.put(("evaluation", request.evaluation.sequence))
                    self.evaluations.put(wire.evaluation_from_proto(request.evaluation))
        commands.put_nowait(None)


class ScriptedQuantizer(Scripted, quantizer_pb2_grpc.QuantizerServiceServicer):
    """Serves the policies that the test gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: queue.Queue[quantizer_pb2.WatchPoliciesRequest] = queue.Queue()
        # Released when a watcher has left.
        self.left = threading.Semaphore(0)
        self._published: Policy | None = None
        self._offered: dict[str, Policy] = {}
        # The requested schemes.
        self.asked: queue.Queue[str] = queue.Queue()
        # The versions that were requested to be held, and the versions that are reported as removed.
        self.holds: queue.Queue[int] = queue.Queue()
        self.gone: set[int] = set()

    def publish(self, policy: Policy) -> None:
        """Serve this policy to every caller."""
        self._published = policy

    def offer(self, *policies: Policy) -> None:
        """Serve only these policies, each to callers of its scheme."""
        self._offered = {policy.descriptor.scheme: policy for policy in policies}

    def serve(self, policy: Policy) -> None:
        """Send a policy on the open stream."""
        for message in _messages(quantizer_pb2.WatchPoliciesResponse, policy):
            self._tell(message)

    def watched(self) -> quantizer_pb2.WatchPoliciesRequest:
        """Wait for the next watcher."""
        return self.watches.get(timeout=DEADLINE_S)

    async def WatchPolicies(  # noqa: N802
        self, request: quantizer_pb2.WatchPoliciesRequest, context: Any
    ) -> AsyncIterator[quantizer_pb2.WatchPoliciesResponse]:
        """Send the policies of the test."""
        self._new_stream()
        context.add_done_callback(lambda _: self.left.release())
        self.watches.put(request)
        async for response in self._script():
            yield response

    async def GetPolicy(  # noqa: N802
        self, request: quantizer_pb2.GetPolicyRequest, context: Any
    ) -> AsyncIterator[quantizer_pb2.GetPolicyResponse]:
        """Send the offered policy of the scheme, or the published policy."""
        policy = self._offered.get(request.scheme, self._published)
        # Last, because the reader of this queue may offer other policies at once.
        self.asked.put(request.scheme)
        if policy is None:
            raise NotFoundError("nothing is published")
        for message in _messages(quantizer_pb2.GetPolicyResponse, policy):
            yield message

    async def HoldPolicy(  # noqa: N802
        self, request: quantizer_pb2.HoldPolicyRequest, context: Any
    ) -> quantizer_pb2.HoldPolicyResponse:
        """Record the version to hold, and grant the requested time."""
        self.holds.put(request.version)
        if request.version in self.gone:
            raise NotFoundError(f"version {request.version} is not retained")
        return quantizer_pb2.HoldPolicyResponse(granted=request.duration)


def _messages(response: type[R], policy: Policy) -> Iterator[R]:
    yield response(policy=wire.descriptor_to_proto(policy.descriptor))
    for part in split_blob(policy.model, policy.descriptor.version):
        yield response(part=part)


@contextmanager
def serving(peer: ScriptedLearner | ScriptedQuantizer) -> Iterator[str]:
    """Serve a peer on its own thread. Returns its address."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = Future()

    async def serve() -> None:
        server, stop = Server("127.0.0.1:0"), asyncio.Event()
        if isinstance(peer, ScriptedLearner):
            learner_pb2_grpc.add_LearnerServiceServicer_to_server(peer, server.grpc_server)
        else:
            quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server(peer, server.grpc_server)
        started.set_result((asyncio.get_running_loop(), stop, await server.start(())))
        await stop.wait()
        await server.stop(grace_s=0.0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="peer")
    thread.start()
    loop, stop, peer.address = started.result(DEADLINE_S)
    yield peer.address
    loop.call_soon_threadsafe(stop.set)
    thread.join(DEADLINE_S)


def small_segment(sequence: int) -> Segment:
    """One step of one CartPole."""
    flag = np.zeros((1, 1), np.bool_)
    return Segment(
        sequence=sequence,
        spans=(PolicySpan(0, 1, "int8"),),
        columns={
            "observations": np.zeros((2, 1, 4), np.float32),
            "actions": np.zeros((1, 1), np.int64),
            "rewards": np.ones((1, 1), np.float32),
            "terminated": flag,
            "truncated": flag,
            "valid": ~flag,
            "ages": np.zeros(1, np.uint8),
        },
    )
