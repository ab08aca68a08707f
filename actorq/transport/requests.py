"""Requests that are no protobuf of their type, or whose checksum does not fit: not an exception inside gRPC.

gRPC answers a deserializer that raises with INTERNAL or UNKNOWN, and logs a traceback. Here the deserializer returns
the fault, and the handler raises it. A malformed request becomes INVALID_ARGUMENT, and a changed one DATA_LOSS.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from actorq.errors import ActorQError, CorruptedError, InvalidInputError
from actorq.transport.errors import MALFORMED


class Malformed:
    """Stands for a request that cannot be read; `error` is for its caller."""

    def __init__(self, error: ActorQError) -> None:
        self.error = error


def tolerant(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer that returns `Malformed` where `deserializer` raises."""

    def deserialize(data: bytes) -> Any:
        try:
            return deserializer(data)
        except CorruptedError as error:
            return Malformed(error)
        except Exception:
            return Malformed(InvalidInputError(f"request: {MALFORMED}, got {len(data)} other bytes"))

    return deserialize


def checked(request: Any, streaming: bool) -> Any:
    """A request, or the iterator of a stream's requests, that raises the error of one that cannot be read."""
    return _Checked(request) if streaming else _well_formed(request)


class _Checked:
    """Passes the requests of a stream on."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> "_Checked":
        return self

    async def __anext__(self) -> Any:
        # Not before: gRPC's iterator complains of never having been awaited where a call is refused unread.
        return _well_formed(await anext(aiter(self._requests)))


def _well_formed(request: Any) -> Any:
    if isinstance(request, Malformed):
        raise request.error
    return request
