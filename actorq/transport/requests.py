"""Turns requests that cannot be read into errors of the domain.

When a deserializer raises, gRPC answers INTERNAL or UNKNOWN and logs a traceback. Here the deserializer returns the
fault, and the handler raises it. A malformed request becomes INVALID_ARGUMENT, and a changed one DATA_LOSS.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from actorq.errors import ActorQError, CorruptedError, InvalidInputError
from actorq.transport.errors import MALFORMED


def tolerant(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer that returns the error for the caller where `deserializer` raises."""

    def deserialize(data: bytes) -> Any:
        try:
            return deserializer(data)
        except CorruptedError as error:
            return error
        except Exception:
            return InvalidInputError(f"request: {MALFORMED}, got {len(data)} other bytes")

    return deserialize


def checked(request: Any, streaming: bool) -> Any:
    """The request, or an iterator over a stream's requests. Raises the error of an unreadable request."""
    return _Checked(request) if streaming else _well_formed(request)


class _Checked:
    """Iterates over the requests of a stream."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> "_Checked":
        return self

    async def __anext__(self) -> Any:
        # Not earlier: gRPC's iterator warns that it was never awaited when a call is refused unread.
        return _well_formed(await anext(aiter(self._requests)))


def _well_formed(request: Any) -> Any:
    if isinstance(request, ActorQError):
        raise request
    return request
