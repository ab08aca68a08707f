"""Clients of Play on real connections, and a server whose policy goes right."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from actor_service.external.streams.door import Door
from actor_service.external.streams.servicer import ExternalServicer
from actorq import wire
from actorq.errors import ActorQError
from actorq.transport.channels import open_channel
from actorq.transport.errors import error_from_rpc
from actorq.transport.options import Certificates
from actorq.v1 import external_pb2, external_pb2_grpc
from tests.actor_service.external.simulators import DEADLINE_S, opening
from tests.actorq.transport.staged_servicer import Stage, serving

SERVICE = "actorq.v1.ExternalEnvironmentService"


class Client:
    """One stream of a simulator. `send` and `receive` may be called in any order."""

    def __init__(self, address: str, certificates: Certificates | None = None) -> None:
        self._requests: queue.SimpleQueue[external_pb2.PlayRequest | None] = queue.SimpleQueue()
        self._channel = open_channel(address, certificates)
        stub = external_pb2_grpc.ExternalEnvironmentServiceStub(self._channel)
        self.call: Any = stub.Play(iter(self._requests.get, None), timeout=DEADLINE_S)

    def send(self, message: wire.PlayOpening | wire.PlayStep | external_pb2.PlayRequest) -> None:
        """Send a message, and do not wait."""
        if isinstance(message, wire.PlayOpening):
            message = external_pb2.PlayRequest(open=wire.play_opening_to_proto(message))
        elif isinstance(message, wire.PlayStep):
            message = external_pb2.PlayRequest(step=wire.play_step_to_proto(message))
        self._requests.put(message)

    def receive(self) -> external_pb2.PlayResponse:
        """The next answer. Raises the error of this project that ended the stream, and StopIteration at its end."""
        try:
            found: external_pb2.PlayResponse = next(self.call)
            return found
        except grpc.RpcError as error:
            raise error_from_rpc(error, "actor") from error

    def open(self, given: wire.PlayOpening | None = None) -> external_pb2.PlayReady:
        """Open the stream."""
        self.send(given or opening())
        return self.receive().ready

    def play(self, given: wire.PlayStep) -> external_pb2.PlayAction:
        """Send a step, and wait for its answer."""
        self.send(given)
        return self.receive().action

    def error(self) -> ActorQError | None:
        """Wait for the end of the stream. Returns its error; None if it ended in order."""
        try:
            while True:
                self.receive()
        except ActorQError as error:
            return error
        except StopIteration:
            return None

    def finish(self) -> None:
        """Close this side of the stream."""
        self._requests.put(None)

    def kill(self) -> None:
        """Close the connection."""
        self._requests.put(None)
        self._channel.close()


@contextmanager
def served(door: Door, certificates: Certificates | None = None, answers: bool = True) -> Iterator[Stage]:
    """Serve a door. Its simulators go right at each step, with a policy of version 3."""
    stop = threading.Event()

    def answer() -> None:
        while not stop.is_set():
            for session, _ in door.take(DEADLINE_S).arrivals:
                count = session.count
                given = np.ones(count, np.int64), np.full(count, 3, np.int64), "int8", np.zeros(count, np.bool_)
                door.answer([(session, wire.PlayAnswer(*given))])

    def add(_: object, server: grpc.aio.Server) -> None:
        external_pb2_grpc.add_ExternalEnvironmentServiceServicer_to_server(ExternalServicer(door), server)
        assert asyncio.get_running_loop()

    thread = threading.Thread(target=answer)
    if answers:
        thread.start()
    try:
        with serving(None, certificates, add, SERVICE) as stage:
            yield stage
    finally:
        stop.set()
        door.wake()
        if answers:
            thread.join(DEADLINE_S)
