"""Puts a CRC-32 in front of each message, because TCP does not detect every changed byte.

A changed byte in a segment would become a wrong transition. A changed byte in an acknowledgement would lose
transitions. TLS rejects changed bytes. Without TLS, only this checksum detects them.

Clients of this project seal their calls, and mark them as sealed in the metadata. All messages of a sealed call have a
checksum, in both directions. Calls of other clients, such as grpcurl, have none. Responses with policies are never
sealed: each policy carries a SHA-256, and all actors get the same message.
"""

import struct
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import grpc

from actorq.errors import CorruptedError
from actorq.statefiles.crc import crc32

_HEADER = struct.Struct("<I")
SEALED = ("actorq-checksum", "crc32")
"""The metadata entry of a sealed call."""

_SEALED_CALLS = "/actorq."
_POLICIES = ("/actorq.v1.QuantizerService/WatchPolicies", "/actorq.v1.QuantizerService/GetPolicy")

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[Any], Any]
"""Serializes to bytes or a view of them."""


def seal(data: bytes) -> bytes:
    """Put the checksum in front of a message."""
    return _HEADER.pack(crc32(data)) + data


def unseal(data: bytes) -> memoryview:
    """A view of the message behind the checksum. Raises CorruptedError when the checksum does not match."""
    message = memoryview(data)[_HEADER.size :]
    expected = int.from_bytes(data[: _HEADER.size], "little")
    if len(data) < _HEADER.size or (found := crc32(message)) != expected:
        got = f"{found:08x}" if len(data) >= _HEADER.size else f"only {len(data)} bytes"
        raise CorruptedError(f"message: expected CRC-32 {expected:08x}, got {got}; bytes have changed on the way")
    return message


class SealedCall:
    """One call at the server. All its messages are sealed if its metadata says so."""

    def __init__(self, call: grpc.HandlerCallDetails, deserialize: Deserializer, serialize: Serializer | None) -> None:
        """serialize: None if responses are already bytes."""
        self._deserialize = deserialize
        self._serialize = serialize
        self._sealed = SEALED in ((key, value) for key, value in call.invocation_metadata or ())
        self._answers_sealed = self._sealed and call.method not in _POLICIES

    def deserialize(self, data: bytes) -> Any:
        """Decode a request. Raises CorruptedError when its checksum does not match."""
        return self._deserialize(unseal(data) if self._sealed else data)

    def serialize(self, message: Any) -> bytes:
        """Encode a response."""
        data = message if self._serialize is None else self._serialize(message)
        return seal(data) if self._answers_sealed else data


class _Call:
    """A method of a sealed channel. It marks its calls as sealed in the metadata."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        return self._call(request, timeout=timeout, metadata=_sealed(metadata), **options)

    def future(self, request: Any, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        """The future response of a call in the background."""
        return self._call.future(request, timeout=timeout, metadata=_sealed(metadata), **options)


def _sealed(metadata: Any) -> tuple[Any, ...]:
    return (*(metadata or ()), SEALED)


class ChecksummedChannel(grpc.Channel):
    """A channel whose calls to this project's services are sealed."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """See grpc.Channel."""
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """See grpc.Channel."""
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        """End all calls."""
        self._channel.close()

    def __enter__(self) -> "ChecksummedChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(
        self,
        kind: str,
        method: str,
        request_serializer: Serializer | None = None,
        response_deserializer: Deserializer | None = None,
        **options: Any,
    ) -> Any:
        make = getattr(self._channel, kind)
        if not method.startswith(_SEALED_CALLS):
            return make(method, request_serializer, response_deserializer, **options)

        def serialize(request: Any) -> bytes:
            return seal(request if request_serializer is None else request_serializer(request))

        def deserialize(data: bytes) -> Any:
            message = unseal(data)
            return bytes(message) if response_deserializer is None else response_deserializer(message)

        return _Call(make(method, serialize, response_deserializer if method in _POLICIES else deserialize, **options))

    # The methods of grpc.Channel.
    unary_unary = partialmethod(_make, "unary_unary")
    unary_stream = partialmethod(_make, "unary_stream")
    stream_unary = partialmethod(_make, "stream_unary")
    stream_stream = partialmethod(_make, "stream_stream")
