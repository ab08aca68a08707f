"""The gRPC ExternalEnvironmentService: decodes the steps of simulators, hands them over, encodes the answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from actor_service.external.streams.door import Door
from actor_service.external.streams.session import Ending, PlaySession, Reply
from actorq import wire
from actorq.errors import ActorQError, InvalidInputError, UnavailableError
from actorq.v1 import external_pb2, external_pb2_grpc

T = TypeVar("T")
# Seconds for the first message of a stream.
_OPEN_S = 20.0


class ExternalServicer(external_pb2_grpc.ExternalEnvironmentServiceServicer):
    """Serves the door of one actor, on the event loop that creates it."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        door.post = self._post

    async def Play(self, request_iterator: AsyncIterator[external_pb2.PlayRequest], context: Any) -> None:
        """Answer the steps of one simulator."""
        try:
            await self._play(aiter(request_iterator), context)
        except ActorQError as error:
            self._door.note(error)
            raise

    async def _play(self, requests: AsyncIterator[external_pb2.PlayRequest], context: Any) -> None:
        first = await _within(anext(requests, None), _OPEN_S, "sent no message after its connection")
        if first is None or first.WhichOneof("payload") != "open":
            raise InvalidInputError("stream: the first message must be `open`")
        mailbox = _Mailbox(self._loop)
        session, ready = self._door.open(wire.play_opening_from_proto(first.open), mailbox.put)
        try:
            opened = external_pb2.PlayResponse(ready=wire.play_ready_to_proto(ready))
            await _send(opened, mailbox, context, ready.timeout_s)
            await self._answer(session, mailbox, requests, context, ready.timeout_s)
        except asyncio.CancelledError:
            if mailbox.ending is None:
                raise
            mailbox.task.uncancel()
            if (error := mailbox.ending.error) is not None:
                raise type(error)(str(error)) from None
        finally:
            mailbox.close()
            self._door.leave(session)

    async def _answer(
        self,
        session: PlaySession,
        mailbox: "_Mailbox",
        requests: AsyncIterator[external_pb2.PlayRequest],
        context: Any,
        limit_s: float,
    ) -> None:
        """Answer each step until the simulator closes its side of the stream."""
        while (request := await _within(anext(requests, None), limit_s, "sent no step after an answer")) is not None:
            if request.WhichOneof("payload") != "step":
                raise InvalidInputError("stream: expected a step after `open`, got another message")
            reply = mailbox.expect()
            self._door.offer(session, session.accept(wire.play_step_from_proto(request.step)))
            answer = external_pb2.PlayResponse(action=wire.play_answer_to_proto(await reply))
            await _send(answer, mailbox, context, limit_s)

    def _post(self, function: Callable[[], None]) -> None:
        # A closed loop means that the process is about to end.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)


class _Mailbox:
    """Receives the replies for one stream, on the event loop. An ending cancels the stream's task.

    ending: the end by the actor; None before it.
    writing: whether a message is being sent. gRPC cannot end a call during a write, so an ending waits for `check`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next: asyncio.Future[wire.PlayAnswer] = loop.create_future()
        self._closed = False
        self.ending: Ending | None = None
        self.writing = False
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    def expect(self) -> Awaitable[wire.PlayAnswer]:
        """The next answer. Call it before the step is handed over."""
        self._next = self._loop.create_future()
        return self._next

    def put(self, reply: Reply) -> None:
        """Deliver an answer or the end."""
        if self._closed:
            return
        if isinstance(reply, Ending):
            if self.ending is None:
                self.ending = reply
                if not self.writing:
                    self.task.cancel()
        elif not self._next.done():
            self._next.set_result(reply)

    def check(self) -> None:
        """Raise CancelledError after an ending."""
        if self.ending is not None:
            raise asyncio.CancelledError

    def close(self) -> None:
        """Ignore all further replies, because the task belongs to the server again."""
        self._closed = True


async def _send(message: external_pb2.PlayResponse, mailbox: _Mailbox, context: Any, limit_s: float) -> None:
    """Send a message. Raises CancelledError if the stream's ending has come meanwhile."""
    mailbox.writing = True
    try:
        await _within(context.write(message), limit_s, "did not read its answers")
    finally:
        mailbox.writing = False
    mailbox.check()


async def _within(waited: Awaitable[T], seconds: float, what: str) -> T:
    """The result of an awaitable. Raises UnavailableError when the simulator takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await waited
    except TimeoutError:
        raise UnavailableError(
            f"the simulator {what} for {seconds:g} s, so its episodes were cut; external.timeout_s sets the limit"
        ) from None
