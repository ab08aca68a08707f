"""Transfers bytes larger than a message. The sender splits them into parts. The receiver checks and joins the parts."""

import hashlib
from collections.abc import Iterable, Iterator

from actorq.domain.limits import MAX_BLOB_BYTES
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.options import CHUNK_BYTES
from actorq.transport.payload.sparse_bytes import MOST_GAIN, pack, unpack
from actorq.v1 import tensor_pb2

_PLAIN, _SPARSE = tensor_pb2.BLOB_ENCODING_UNSPECIFIED, tensor_pb2.BLOB_ENCODING_SPARSE
ENCODINGS = (_SPARSE,)
"""The encodings besides plain bytes that this version decodes. A sender uses only encodings that its receiver lists."""


def split_blob(
    data: bytes, version: int = 0, chunk_bytes: int = CHUNK_BYTES, encodings: Iterable[tensor_pb2.BlobEncoding] = ()
) -> Iterator[tensor_pb2.BlobPart]:
    """Yield the parts of `data`: a header, then chunks of at most `chunk_bytes`.

    encodings: the receiver's encodings. Bytes with many zeros are packed if the receiver supports it.
    """
    packed = pack(data) if _SPARSE in encodings else None
    sent = data if packed is None else packed
    header = tensor_pb2.BlobHeader(version=version, size_bytes=len(sent), sha256=hashlib.sha256(data).digest())
    if packed is not None:
        header.encoding, header.plain_size_bytes = _SPARSE, len(data)
    yield tensor_pb2.BlobPart(header=header)
    view = memoryview(sent)
    for start in range(0, len(sent), chunk_bytes):
        yield tensor_pb2.BlobPart(chunk=bytes(view[start : start + chunk_bytes]))


class BlobAssembler:
    """Joins the parts of one blob and checks its size, digest and version.

    `limit_bytes` bounds the memory that a sender can occupy at the receiver, including unpacked bytes.
    """

    def __init__(self, expected_version: int, limit_bytes: int = MAX_BLOB_BYTES) -> None:
        self._expected_version = expected_version
        self._limit = limit_bytes
        self._header: tensor_pb2.BlobHeader | None = None
        self._data = bytearray()

    @property
    def sha256(self) -> bytes:
        """The digest of the whole blob. Valid once `add` has returned the blob."""
        assert self._header is not None
        return self._header.sha256

    def add(self, part: tensor_pb2.BlobPart) -> bytes | None:
        """Add the next part. Returns the whole blob after the last part, else None."""
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
        if header.encoding not in (_PLAIN, *ENCODINGS):
            raise InvalidInputError(
                f"blob: expected an encoding among {[_PLAIN, *ENCODINGS]}, got {header.encoding}; its sender has "
                "another version of ActorQ"
            )
        most = 0 if header.encoding == _PLAIN else MOST_GAIN * header.size_bytes
        least = min(most, header.size_bytes + 1)
        if not least <= header.plain_size_bytes <= most:
            raise InvalidInputError(
                f"blob: expected a plain size from {least} to {most} bytes for {header.size_bytes} bytes in encoding "
                f"{header.encoding}, got {header.plain_size_bytes}"
            )
        if (largest := max(header.size_bytes, header.plain_size_bytes)) > self._limit:
            raise ExhaustedError(f"blob: expected at most {self._limit} bytes, got {largest}")
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
        if header.encoding == _SPARSE:
            data = unpack(data, header.plain_size_bytes)
        digest = hashlib.sha256(data).digest()
        if digest != header.sha256:
            raise InvalidInputError(f"blob: expected sha256 {header.sha256.hex()}, got {digest.hex()}")
        return data
