"""Maps the domain's errors to gRPC statuses and back, for servers and clients."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from actorq.errors import (
    ActorQError,
    ConflictError,
    CorruptedError,
    DeniedError,
    ExhaustedError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
    UnreadableError,
    UserError,
)
from actorq.statefiles.crc import crc32
from actorq.text import one_line

_log = logging.getLogger(__name__)

_MAX_SUMMARY_BYTES = 500

# Marks a bug of the service. INTERNAL and UNKNOWN without this text mean a broken connection.
_OWN_FAULT = "the service's log has the details"
_OVERSIZED = "eceived message larger than max"
# gRPC's text for a message that is too large for its sender.
_UNSENT = "ent message larger than max"
# A service's text for a request that is not protobuf. Our clients send protobuf, so the network changed the bytes.
MALFORMED = "must be a message of this method in protobuf"
# Trailing metadata of a call that a service ended: the CRC-32 of status and details.
_SIGNATURE = "actorq-status-crc32"

_STATUS: dict[type[ActorQError], grpc.StatusCode] = {
    CorruptedError: grpc.StatusCode.DATA_LOSS,
    UnreadableError: grpc.StatusCode.UNAVAILABLE,
    InvalidInputError: grpc.StatusCode.INVALID_ARGUMENT,
    UserError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    ConflictError: grpc.StatusCode.FAILED_PRECONDITION,
    ExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeniedError: grpc.StatusCode.PERMISSION_DENIED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
}
# A client cannot distinguish errors with the same status.
_ERROR: dict[grpc.StatusCode, type[ActorQError]] = {
    **{status: kind for kind, status in _STATUS.items() if kind not in (UserError, UnreadableError)},
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
}


def error_from_rpc(error: grpc.RpcError, peer: str) -> ActorQError:
    """The domain's error for a failed call. `peer` names the other side in the error's text."""
    status, details = error.code(), one_line(error.details() or "no details")
    kind = _ERROR.get(status, ActorQError)
    final, as_sent = not issubclass(kind, UnavailableError), is_as_sent(error)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return UnavailableError(f"{peer} does not serve this call ({details}); check the address and the versions")
    if _is_unreadable(status, details) or (final and not as_sent):
        return UnavailableError(f"{peer} cannot be understood ({details}); the connection is broken")
    # The peer answered, so it can be reached.
    if kind is UnavailableError and not as_sent:
        return UnavailableError(f"{peer} cannot be reached ({_reason(details)})")
    return kind(f"{peer}: {details}")


def _signature(status: grpc.StatusCode, details: str) -> str:
    return f"{crc32(f'{status.name} {details}'.encode(errors='replace')):08x}"


def is_as_sent(error: grpc.RpcError) -> bool:
    """Whether the service sent this status unchanged. Without TLS, bytes may change in transit.

    gRPC does not sign its own statuses. Of these, only the one for a message too large for its sender is trusted.
    """
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _UNSENT in (error.details() or ""):
        return True
    signature = dict(error.trailing_metadata() or ()).get(_SIGNATURE)
    return signature == _signature(error.code(), error.details() or "")


def was_dropped(error: BaseException | None) -> bool:
    """Whether a service's gRPC dropped a call before the service saw it, because too many calls were waiting."""
    return isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.CANCELLED and not is_as_sent(error)


def _is_unreadable(status: grpc.StatusCode, details: str) -> bool:
    """Whether gRPC or the service could not read the received bytes."""
    if status in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
        return _OWN_FAULT not in details
    oversized = status is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVERSIZED in details
    return oversized or (status is grpc.StatusCode.INVALID_ARGUMENT and MALFORMED in details)


def _reason(details: str) -> str:
    """Why a peer cannot be reached. gRPC lists all addresses that it tried. The last one has the reason."""
    if details == "max connection age":
        return "the connection reached its maximum age; the next connection checks the certificates again"
    if not details.startswith(("failed to connect", "errors resolving")):
        return details
    # gRPC's text ends with "OK" for a failed handshake, and with a bracket for an unknown name.
    reason = details.removesuffix(": OK").rpartition(": ")[2].removesuffix("]")
    if "WRONG_VERSION_NUMBER" in details:
        return "it serves without TLS"
    if reason.startswith("Hostname Verification Check failed"):
        return "its certificate is for other names"
    if reason == "Socket closed":
        # This text occurs only while connecting. For a later loss gRPC says "Stream removed".
        return "it closed the connection: with mutual TLS, a peer refuses a certificate that is not of its authority"
    return f"TLS handshake failed, {reason}" if "handshake failed" in details else reason


@contextmanager
def translated(peer: str) -> Iterator[None]:
    """Turn gRPC errors of the calls inside into errors of the domain."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error, peer) from error


async def abort(context: grpc.aio.ServicerContext, method: str, error: Exception) -> None:
    """End a call with the status of a domain error. Any other error is logged and becomes INTERNAL."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            # Callers correctly retry calls to an unavailable service, so this would fill the log.
            level = logging.DEBUG if kind is UnavailableError else logging.WARNING
            _log.log(level, "%s refused: %s", method, error)
            _release(error)
            await _end(context, status, one_line(str(error)))
    _log.error("%s failed", method, exc_info=error)
    _release(error)
    summary = one_line(f"{type(error).__name__}: {error}", _MAX_SUMMARY_BYTES)
    await _end(context, grpc.StatusCode.INTERNAL, f"{summary}; {_OWN_FAULT}")


async def _end(context: grpc.aio.ServicerContext, status: grpc.StatusCode, details: str) -> None:
    await context.abort(status, details, ((_SIGNATURE, _signature(status, details)),))


def _release(error: BaseException) -> None:
    """Release the objects that an error's frames hold.

    The error and its frames refer to each other. A refused checkpoint of a hundred megabytes, held by such a frame,
    would stay until the garbage collector runs. The collector counts objects, not their size.

    The frames themselves are not cleared. One error may have passed through several tasks. Clearing the frame of a
    suspended coroutine closes the coroutine and ends its task.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
