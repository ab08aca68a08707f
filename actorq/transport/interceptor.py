"""Handles the common parts of all calls of a server: checks of requests, counts, and error statuses."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from actorq.errors import ActorQError, CorruptedError, InvalidInputError
from actorq.transport.calls import CallCounts
from actorq.transport.errors import MALFORMED, abort
from actorq.transport.floods import Traffic
from actorq.transport.payload.checksums import SealedCall
from actorq.transport.quota import Quota
from actorq.transport.security.access import Gate, OpenStream

_OWN_SERVICES = ("/actorq.", "/externalscaler.")
# Health is answered even at the limit of open calls, because it must not depend on a service's callers.
_FREE_METHOD = "/grpc.health.v1.Health/Check"


def tolerant(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer that returns the error when `deserializer` raises. `checked` raises the error later.

    When a deserializer raises, gRPC answers INTERNAL or UNKNOWN and logs a traceback. With this, a malformed request
    becomes INVALID_ARGUMENT, and one with a wrong checksum DATA_LOSS.
    """

    def deserialize(data: bytes) -> Any:
        try:
            return deserializer(data)
        except CorruptedError as error:
            return error
        except Exception:
            return InvalidInputError(f"request: {MALFORMED}, got {len(data)} other bytes")

    return deserialize


def checked(request: Any, streaming: bool) -> Any:
    """The request, or an iterator over a stream's requests. Raises the error of a request that cannot be decoded."""
    return _Checked(request) if streaming else _well_formed(request)


class _Checked:
    """Iterates over the requests of a stream."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> "_Checked":
        return self

    async def __anext__(self) -> Any:
        # The iterator is created only here: if a call is refused unread, gRPC's iterator would warn that it was never
        # awaited.
        return _well_formed(await anext(aiter(self._requests)))


def _well_formed(request: Any) -> Any:
    if isinstance(request, ActorQError):
        raise request
    return request


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps all handlers of a server, including health and reflection.

    A malformed request becomes INVALID_ARGUMENT, a wrong checksum DATA_LOSS, a call above the quota
    RESOURCE_EXHAUSTED. Each domain error has its own status.

    counts: counts how the calls of this project's services ended.
    open_calls: bounds the number of open calls.
    gate: checks the certificate of each call first; None without TLS.
    traffic: counts the message sizes of each connection.
    """

    def __init__(
        self, counts: CallCounts, open_calls: Quota, gate: Gate | None = None, traffic: Traffic | None = None
    ) -> None:
        self._counts = counts
        self._traffic = traffic or Traffic()
        self._open_calls = open_calls
        self._gate = gate
        self._handlers: set[asyncio.Task[Any]] = set()

    async def finished(self, timeout_s: float) -> None:
        """Wait until the handlers of all calls have ended, for `timeout_s` seconds at most.

        A call ends for its client before its handler has cleaned up. If a handler still runs when the event loop
        closes, asyncio prints a traceback.
        """
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=timeout_s)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wrap the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method: str = handler_call_details.method
        streams_in, streams_out = handler.request_streaming, handler.response_streaming
        kind = "_".join("stream" if streams else "unary" for streams in (streams_in, streams_out))
        inner, factory = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")
        received = _Received(self._traffic)
        wrapped = self._guarded(inner, method, streams_in, streams_in or streams_out, received)
        sealed = SealedCall(handler_call_details, handler.request_deserializer, handler.response_serializer)
        return factory(wrapped, received.counted(tolerant(sealed.deserialize)), sealed.serialize)

    def _guarded(
        self, inner: Callable[..., Any], method: str, streams_in: bool, streaming: bool, received: "_Received"
    ) -> Callable[..., Any]:
        """A handler that admits a call before `inner` runs. A failed call ends with the status of its error."""

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                self._begin(method, streaming, context, received)
                return await inner(checked(request, streams_in), context)
            except (Exception, asyncio.CancelledError) as error:
                await self._abort(context, method, error)

        async def streamed(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            try:
                stream = self._begin(method, streaming, context, received)
                async for response in inner(checked(request, streams_in), context):
                    if stream is None:
                        yield response
                        continue
                    stream.writes = True
                    yield response
                    stream.check()
            except (Exception, asyncio.CancelledError) as error:
                await self._abort(context, method, error)

        # Health's Watch writes to its context instead of yielding.
        return streamed if inspect.isasyncgenfunction(inner) else call

    def _begin(
        self, method: str, streaming: bool, context: grpc.aio.ServicerContext, received: "_Received"
    ) -> OpenStream | None:
        """Count a call and admit it; None without a gate. Raises an error of the domain if the call is not admitted."""
        if (handler := asyncio.current_task()) is not None:
            self._handlers.add(handler)
            handler.add_done_callback(self._handlers.discard)
        if method.startswith(_OWN_SERVICES):
            self._counts.follow(method, streaming, context)
        admitted = None if self._gate is None else self._gate.admit(method, streaming, context)
        received.begin(context)
        if method != _FREE_METHOD:
            peer = context.peer()
            self._open_calls.acquire(peer)
            # A `finally` would be too late, because a canceled call leaves its generator to the garbage collector.
            context.add_done_callback(lambda _: self._open_calls.release(peer))
        return admitted

    async def _abort(self, context: grpc.aio.ServicerContext, method: str, error: BaseException) -> None:
        reason = error if self._gate is None else self._gate.reason(error)
        if not isinstance(reason, Exception):
            raise reason
        await abort(context, method, reason)


class _Received:
    """Counts one call's messages for its connection. The first message may arrive before the call begins."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._peer = ""
        self._early = 0

    def begin(self, context: grpc.aio.ServicerContext) -> None:
        """Begin the call. Its peer is now known."""
        self._peer = peer = context.peer()
        self._traffic.begin(peer)
        self._traffic.add(peer, self._early)
        context.add_done_callback(lambda _: self._traffic.end(peer))

    def counted(self, deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """A deserializer that also counts bytes."""

        def counting(data: bytes) -> Any:
            if self._peer:
                self._traffic.add(self._peer, len(data))
            else:
                self._early += len(data)
            return deserialize(data)

        return counting
