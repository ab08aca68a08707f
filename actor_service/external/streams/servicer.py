"""The gRPC ExternalEnvironmentService: decodes the steps of simulators, hands them over, encodes the answers."""

import asyncio
import math
import threading
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
_NO_STEP, _NO_READ = "sent no step after an answer", "did not read its answers"


class ExternalServicer(external_pb2_grpc.ExternalEnvironmentServiceServicer):
    """Serves the door of one actor, on the event loop that creates it."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        door.post, door.soon = self._post, self._loop.call_soon

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
        deadline = _Deadline(self._loop, mailbox, ready.timeout_s)
        try:
            await _write(external_pb2.PlayResponse(ready=wire.play_ready_to_proto(ready)), mailbox, deadline, context)
            await self._answer(session, mailbox, deadline, requests, context)
        except asyncio.CancelledError:
            if mailbox.ending is None:
                raise
            mailbox.task.uncancel()
            if (error := mailbox.ending.error) is not None:
                raise type(error)(str(error)) from None
        finally:
            deadline.close()
            mailbox.close()
            self._door.leave(session)

    async def _answer(
        self,
        session: PlaySession,
        mailbox: "_Mailbox",
        deadline: "_Deadline",
        requests: AsyncIterator[external_pb2.PlayRequest],
        context: Any,
    ) -> None:
        """Answer each step until the simulator closes its side of the stream."""
        deadline.begin(_NO_STEP)
        async for request in requests:
            deadline.end()
            if request.WhichOneof("payload") != "step":
                raise InvalidInputError("stream: expected a step after `open`, got another message")
            reply = mailbox.expect()
            self._door.offer(session, session.accept(wire.play_step_from_proto(request.step)))
            answer = external_pb2.PlayResponse(action=wire.play_answer_to_proto(await reply))
            await _write(answer, mailbox, deadline, context)
            deadline.begin(_NO_STEP)

    def _post(self, function: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            function()
            return
        # A closed loop means that the process is about to end.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)


class _Mailbox:
    """Receives the replies for one stream, on the event loop. An ending cancels the stream's task unless it writes.

    ending: the end by the actor; None before it. writes: whether the stream's task writes a message.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next: asyncio.Future[wire.PlayAnswer] = loop.create_future()
        self._closed = False
        self.ending: Ending | None = None
        self.writes = False
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
                if not self.writes:
                    self.task.cancel()
        elif not self._next.done():
            self._next.set_result(reply)

    def expire(self, error: Exception) -> None:
        """End the stream because the simulator is too slow, also in a write: it may never read."""
        if not self._closed:
            self.ending = self.ending or Ending(error)
            self.task.cancel()

    def check(self) -> None:
        """Raise CancelledError after an ending."""
        if self.ending is not None:
            raise asyncio.CancelledError

    def close(self) -> None:
        """Ignore all further replies, because the task belongs to the server again."""
        self._closed = True


class _Deadline:
    """Ends a stream whose simulator takes longer than `limit_s` seconds, with UnavailableError.

    It has one timer for the whole stream, because a timer for each step costs more than the checks of the step.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, mailbox: _Mailbox, limit_s: float) -> None:
        self._loop, self._mailbox, self._limit_s = loop, mailbox, limit_s
        self._due = math.inf
        self._what = ""
        self._timer = loop.call_later(limit_s, self._look)

    def begin(self, what: str) -> None:
        """Begin to wait for the simulator. what: its fault if it takes too long."""
        self._what, self._due = what, self._loop.time() + self._limit_s

    def end(self) -> None:
        """The simulator was in time."""
        self._due = math.inf

    def close(self) -> None:
        """Never end the stream."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._due - self._loop.time()
        if left > 0:
            # A later wait may be due as soon as after a whole limit.
            self._timer = self._loop.call_later(min(left, self._limit_s), self._look)
        else:
            self._mailbox.expire(_too_slow(self._what, self._limit_s))


async def _write(response: external_pb2.PlayResponse, mailbox: _Mailbox, deadline: _Deadline, context: Any) -> None:
    """Send a message. An ending waits for it: gRPC cannot send a status while a cancelled write is in progress."""
    mailbox.writes = True
    deadline.begin(_NO_READ)
    try:
        await context.write(response)
    finally:
        mailbox.writes = False
    mailbox.check()


async def _within(waited: Awaitable[T], seconds: float, what: str) -> T:
    """The result of an awaitable. Raises UnavailableError when the simulator takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await waited
    except TimeoutError:
        raise _too_slow(what, seconds) from None


def _too_slow(what: str, seconds: float) -> UnavailableError:
    return UnavailableError(
        f"the simulator {what} for {seconds:g} s, so its episodes were cut; external.timeout_s sets the limit"
    )
