"""The one map between the domain's errors and gRPC statuses, and the two places that apply it."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from actorq.errors import (
    ActorQError,
    ConflictError,
    ExhaustedError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
    UserError,
)
from actorq.transport.calls import CallCounts

_log = logging.getLogger(__name__)

# A status travels in a header of at most 8 KiB, where a byte may take three; beyond it the whole call is lost.
_MAX_DETAILS_BYTES = 2_000

_STATUS: dict[type[ActorQError], grpc.StatusCode] = {
    InvalidInputError: grpc.StatusCode.INVALID_ARGUMENT,
    UserError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    ConflictError: grpc.StatusCode.FAILED_PRECONDITION,
    ExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
}
_ERROR: dict[grpc.StatusCode, type[ActorQError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInputError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: ConflictError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
}


def error_from_rpc(error: grpc.RpcError, peer: str) -> ActorQError:
    """The domain's error that a failed call stands for; `peer` names the other side in its message."""
    status, details = error.code(), error.details() or "no details"
    kind = _ERROR.get(status, ActorQError)
    if kind is UnavailableError:
        return UnavailableError(f"{peer} cannot be reached ({_reason(details)})")
    return kind(f"{peer}: {details}")


def _reason(details: str) -> str:
    """Why a peer is not there: of all addresses that gRPC tried and lists, what went wrong with the last one."""
    if not details.startswith("failed to connect"):
        return details
    # The end of a failed handshake's text is "OK".
    reason = details.removesuffix(": OK").rpartition(": ")[2]
    if "WRONG_VERSION_NUMBER" in details:
        return "it serves without TLS"
    if reason.startswith("Hostname Verification Check failed"):
        return "its certificate is for other names than that"
    if reason == "Socket closed":
        # While connecting: a service that goes away later says "Stream removed".
        return "it hung up: with mutual TLS, one does on whoever has no valid certificate of its authority"
    return f"TLS handshake failed, {reason}" if "handshake failed" in details else reason


@contextmanager
def translated(peer: str) -> Iterator[None]:
    """Turn the gRPC errors of the calls inside into the domain's errors."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error, peer) from error


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call that raised one of the domain's errors with its status; anything else is logged and INTERNAL.

    calls: counts how each of them ended.
    """

    def __init__(self, calls: CallCounts) -> None:
        self._calls = calls

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wrap the handlers of this project's services; health and reflection have none of our errors."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or not method.startswith(("/actorq.", "/externalscaler.")):
            return handler
        streams_in, streams_out = handler.request_streaming, handler.response_streaming
        if streams_out:
            inner = handler.stream_stream if streams_in else handler.unary_stream
            factory = grpc.stream_stream_rpc_method_handler if streams_in else grpc.unary_stream_rpc_method_handler
            wrapped: Any = _guard_stream(inner, method, self._calls)
        else:
            inner = handler.stream_unary if streams_in else handler.unary_unary
            factory = grpc.stream_unary_rpc_method_handler if streams_in else grpc.unary_unary_rpc_method_handler
            wrapped = _guard_unary(inner, method, streams_in, self._calls)
        return factory(wrapped, handler.request_deserializer, handler.response_serializer)


def _guard_unary(
    inner: Callable[..., Awaitable[Any]], method: str, streaming: bool, calls: CallCounts
) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        calls.follow(method, streaming, context)
        try:
            return await inner(request, context)
        except Exception as error:
            await _abort(context, method, error)

    return call


def _guard_stream(
    inner: Callable[..., AsyncIterator[Any]], method: str, calls: CallCounts
) -> Callable[..., AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        calls.follow(method, True, context)
        try:
            async for response in inner(request, context):
                yield response
        except Exception as error:
            await _abort(context, method, error)

    return call


async def _abort(context: grpc.aio.ServicerContext, method: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            # A caller that should come again later does, and often: a thousand of them would fill the log.
            level = logging.DEBUG if kind is UnavailableError else logging.WARNING
            _log.log(level, "%s refused: %s", method, error)
            _release(error)
            await context.abort(status, _shortened(str(error)))
    _log.error("%s failed", method, exc_info=error)
    _release(error)
    summary = _shortened(f"{type(error).__name__}: {error}")
    await context.abort(grpc.StatusCode.INTERNAL, f"{summary}; the service's log has the details")


def _release(error: BaseException) -> None:
    """Let go of what the calls held that led to an error.

    The error and its frames refer to each other, so that a refused checkpoint of a hundred megabytes, a local of such a
    frame, would stay until the garbage collector runs, which goes by the number of objects and not by their size.

    The frames themselves are left alone: one error may have gone through several tasks, and to clear the frame of a
    coroutine that is suspended is to close the coroutine, which then ends its task.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__


def _shortened(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= _MAX_DETAILS_BYTES else data[:_MAX_DETAILS_BYTES].decode("utf-8", "ignore") + " ..."
