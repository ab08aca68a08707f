"""Real services on real sockets: a quantizer and a learner, each on an event loop in its own thread."""

import asyncio
import queue
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from actorq import wire
from actorq.client import LearnerClient
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Evaluation, Role, Segment
from actorq.process import Service
from actorq.transport.server import Server
from actorq.v1 import learner_pb2
from learner_service.process import LearnerService, LearnerSettings
from quantizer_service.process import QuantizerProcess
from tests.learner_service.learner_parts import SPEC, segment

DEADLINE_S = 60.0
# Of a whole stream; a learner that has just started is slow. One that a test leaves open keeps pytest from ending.
STREAM_S = 90.0


@dataclass(frozen=True)
class Running:
    """A service that serves at `address`; `exit_code` is there once it has ended."""

    service: Service
    address: str
    exit_code: Future[int]


@contextmanager
def running_quantizer(store: Path, listen: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve `store`, give the address, and drain at the end."""
    with _running(lambda: QuantizerProcess(store, RunConfig(), "quantizer"), listen) as running:
        yield running.address


@contextmanager
def running_learner(
    config: RunConfig, directory: Path, quantizer: str, resume: bool = False, linger: bool = False
) -> Iterator[Running]:
    """Serve a run, and end it at the end."""
    settings = LearnerSettings(run_directory=directory, quantizer=quantizer, resume=resume, linger=linger)
    with _running(lambda: LearnerService(config, settings), "127.0.0.1:0") as running:
        yield running


@contextmanager
def _running(make: Callable[[], Service], listen: str) -> Iterator[Running]:
    started: Future[tuple[asyncio.AbstractEventLoop, Service, str]] = Future()
    ended: Future[int] = Future()

    async def serve() -> int:
        server = Server(listen)
        service: Service = make()
        address = await server.start(service.register(server.grpc_server))
        started.set_result((asyncio.get_running_loop(), service, address))
        try:
            return await service.run(address)
        finally:
            await server.stop(grace_s=1.0)

    def run() -> None:
        try:
            ended.set_result(asyncio.run(serve()))
        except BaseException as error:
            for future in (started, ended):
                if not future.done():
                    future.set_exception(error)

    thread = threading.Thread(target=run, name="service")
    thread.start()
    loop, service, address = started.result(DEADLINE_S)
    try:
        yield Running(service, address, ended)
    finally:
        # A service that ends by itself may have closed its loop just now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(service.begin_drain)
        thread.join(DEADLINE_S)
    # Not after an error of the test, which a fault that the test wants would hide.
    ended.result(0)


class ActorStream:
    """An actor's stream by hand: sends given messages and waits for answers."""

    def __init__(self, client: LearnerClient, name: str, incarnation: int = 1) -> None:
        self._requests: queue.Queue[learner_pb2.StreamTrajectoriesRequest | None] = queue.Queue()
        self._name, self._incarnation = name, incarnation
        requests = iter(self._requests.get, None)
        self._responses = client.stub.StreamTrajectories(requests, timeout=STREAM_S)
        self._answer = learner_pb2.StreamTrajectoriesResponse()
        self.directives: set[learner_pb2.Directive] = set()

    def open(self, spec: EnvironmentSpec) -> None:
        """Send the opening message."""
        environment = wire.environment_to_proto(spec)
        self.send(
            open=learner_pb2.StreamOpen(actor_name=self._name, incarnation=self._incarnation, environment=environment)
        )

    def send(self, **payload: Any) -> None:
        """Send one message."""
        self._requests.put(learner_pb2.StreamTrajectoriesRequest(**payload))

    def send_segment(self, segment: Segment) -> None:
        """Send a segment, with or without credit."""
        self.send(segment=wire.segment_to_proto(segment))

    def send_segments(self, sequences: range) -> None:
        """Send segments within the credit and wait until all are stored."""
        for sequence in sequences:
            self.await_credit(sequence)
            self.send_segment(segment(sequence))
            self.await_acknowledged(sequence)

    def send_evaluation(self, evaluation: Evaluation) -> None:
        """Send an evaluation."""
        self.send(evaluation=wire.evaluation_to_proto(evaluation))

    def await_credit(self, sequence: int) -> learner_pb2.StreamTrajectoriesResponse:
        """The answer that grants credit for `sequence`."""
        return self._await(lambda answer: answer.credit_through_sequence >= sequence)

    def await_acknowledged(self, sequence: int) -> learner_pb2.StreamTrajectoriesResponse:
        """The answer once `sequence` is acknowledged."""
        return self._await(lambda answer: answer.acknowledged_sequence >= sequence)

    def await_directive(self, directive: learner_pb2.Directive) -> learner_pb2.StreamTrajectoriesResponse:
        """The answer with `directive`."""
        return self._await(lambda answer: answer.directive == directive)

    def answer(self) -> learner_pb2.StreamTrajectoriesResponse:
        """The next answer."""
        self._answer = next(self._responses)
        return self._answer

    def refusal(self) -> grpc.RpcError:
        """The error that ends the stream."""
        try:
            for response in self._responses:
                self.directives.add(response.directive)
        except grpc.RpcError as error:
            return error
        finally:
            self._requests.put(None)
        raise AssertionError("the stream ended without an error")

    def assert_refused(self, code: grpc.StatusCode, fact: str) -> None:
        """Wait for the error that ends the stream: it has `code`, and its details match the pattern `fact`."""
        error = self.refusal()
        assert error.code() is code
        assert re.search(fact, str(error.details())), error.details()

    def close(self) -> None:
        """End the stream in order and read the remaining messages."""
        self._requests.put(None)
        for _ in self._responses:
            pass

    def _await(
        self, wanted: Callable[[learner_pb2.StreamTrajectoriesResponse], bool]
    ) -> learner_pb2.StreamTrajectoriesResponse:
        while not wanted(self._answer):
            self._answer = next(self._responses)
            self.directives.add(self._answer.directive)
        return self._answer


def joined(
    client: LearnerClient, name: str, incarnation: int = 1, role: Role = "actor", spec: EnvironmentSpec = SPEC
) -> ActorStream:
    """The open stream of an actor that has joined."""
    client.join(name, incarnation, role, "test")
    stream = ActorStream(client, name, incarnation)
    stream.open(spec)
    return stream


@contextmanager
def actor(client: LearnerClient, name: str, incarnation: int = 1, role: Role = "actor") -> Iterator[ActorStream]:
    """A stream that is closed at the end."""
    stream = joined(client, name, incarnation, role)
    yield stream
    stream.close()
