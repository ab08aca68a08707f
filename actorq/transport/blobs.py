"""Bytes larger than a message: cut into parts by the sender, put together and checked by the receiver."""

import hashlib
from collections.abc import Iterator

from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.options import CHUNK_BYTES, MAX_BLOB_BYTES
from actorq.v1 import tensor_pb2


def split_blob(data: bytes, version: int = 0, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tensor_pb2.BlobPart]:
    """Yield the parts of `data`: a header, then chunks of at most `chunk_bytes`."""
    header = tensor_pb2.BlobHeader(version=version, size_bytes=len(data), sha256=hashlib.sha256(data).digest())
    yield tensor_pb2.BlobPart(header=header)
    view = memoryview(data)
    for start in range(0, len(data), chunk_bytes):
        yield tensor_pb2.BlobPart(chunk=bytes(view[start : start + chunk_bytes]))


class BlobAssembler:
    """Puts the parts of one blob together and checks its size, digest and version.

    `limit_bytes` bounds what a sender can make the receiver hold.
    """

    def __init__(self, expected_version: int, limit_bytes: int = MAX_BLOB_BYTES) -> None:
        self._expected_version = expected_version
        self._limit = limit_bytes
        self._header: tensor_pb2.BlobHeader | None = None
        self._data = bytearray()

    def add(self, part: tensor_pb2.BlobPart) -> bytes | None:
        """Take the next part; return the whole blob when it was the last one, else None."""
        kind = part.WhichOneof("part")
        if kind == "header":
            self._open(part.header)
        elif kind == "chunk":
            self._append(part.chunk)
        else:
            raise InvalidInputError("blob: expected a header or a chunk, got an empty part")
        assert self._header is not None
        return self._finish(self._header) if len(self._data) == self._header.size_bytes else None

    def _open(self, header: tensor_pb2.BlobHeader) -> None:
        if self._header is not None:
            raise InvalidInputError(
                f"blob: expected {self._header.size_bytes - len(self._data)} more bytes, got another header"
            )
        if header.version != self._expected_version:
            raise InvalidInputError(f"blob: expected version {self._expected_version}, got {header.version}")
        if header.size_bytes > self._limit:
            raise ExhaustedError(f"blob: at most {self._limit} bytes are taken, got {header.size_bytes}")
        self._header = header

    def _append(self, chunk: bytes) -> None:
        if self._header is None:
            raise InvalidInputError("blob: expected a header, got a chunk")
        if not chunk or len(self._data) + len(chunk) > self._header.size_bytes:
            raise InvalidInputError(
                f"blob: expected 1 to {self._header.size_bytes - len(self._data)} bytes, got a chunk of {len(chunk)}"
            )
        self._data += chunk

    def _finish(self, header: tensor_pb2.BlobHeader) -> bytes:
        data = bytes(self._data)
        digest = hashlib.sha256(data).digest()
        if digest != header.sha256:
            raise InvalidInputError(f"blob: expected sha256 {header.sha256.hex()}, got {digest.hex()}")
        return data
