"""Bytes larger than a message, in parts."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.domain.limits import MAX_MESSAGE_BYTES
from actorq.errors import ExhaustedError, InvalidInputError
from actorq.transport.options import CHUNK_BYTES
from actorq.transport.payload.blobs import ENCODINGS, BlobAssembler, split_blob
from actorq.v1.tensor_pb2 import BLOB_ENCODING_SPARSE, BlobHeader, BlobPart

DATA = b"a policy"


def header(size_bytes: int = len(DATA), version: int = 7, sha256: bytes = hashlib.sha256(DATA).digest()) -> BlobPart:
    return BlobPart(header=BlobHeader(version=version, size_bytes=size_bytes, sha256=sha256))


def chunk(data: bytes) -> BlobPart:
    return BlobPart(chunk=data)


@settings(deadline=None)
@given(data=st.binary(max_size=200), version=st.integers(0, 2**64 - 1), chunk_bytes=st.integers(1, 64))
def test_joins_a_split_blob(data: bytes, version: int, chunk_bytes: int) -> None:
    parts = [BlobPart.FromString(part.SerializeToString()) for part in split_blob(data, version, chunk_bytes)]
    assembler = BlobAssembler(version)
    *open_ends, whole = [assembler.add(part) for part in parts]
    assert whole == data
    assert open_ends == [None] * (len(parts) - 1)
    assert all(0 < len(part.chunk) <= chunk_bytes for part in parts[1:])


def test_splits_a_large_blob_into_messages_within_the_limit() -> None:
    data = bytes(2 * CHUNK_BYTES + 1)
    parts = list(split_blob(data))
    assert [len(part.chunk) for part in parts[1:]] == [CHUNK_BYTES, CHUNK_BYTES, 1]
    assert all(part.ByteSize() < MAX_MESSAGE_BYTES for part in parts)


@pytest.mark.parametrize(
    ("parts", "fact"),
    [
        ([chunk(DATA)], "header.* chunk"),
        ([header(), chunk(b"a "), header()], " 6 .* header"),
        ([header(version=8)], "version 7.* 8$"),
        ([header(), chunk(b"a "), chunk(b"policy!")], " 6 .* 7$"),
        ([header(), chunk(b"")], " 8 .* 0$"),
        ([BlobPart()], "empty"),
        ([header(), BlobPart()], "empty"),
        (
            [header(), chunk(b"a Policy")],
            f"sha256 {hashlib.sha256(DATA).hexdigest()}.* {hashlib.sha256(b'a Policy').hexdigest()}",
        ),
        ([header(size_bytes=0)], f"sha256 {hashlib.sha256(DATA).hexdigest()}.* {hashlib.sha256().hexdigest()}"),
        ([header(sha256=b""), chunk(DATA)], f"sha256 .* {hashlib.sha256(DATA).hexdigest()}"),
    ],
    ids=[
        "chunk first",
        "second header",
        "wrong version",
        "too long",
        "empty chunk",
        "empty part",
        "empty part later",
        "wrong digest",
        "nothing announced",
        "no digest",
    ],
)
def test_a_malformed_blob_is_refused(parts: list[BlobPart], fact: str) -> None:
    assembler = BlobAssembler(expected_version=7)
    assert [assembler.add(part) for part in parts[:-1]] == [None] * (len(parts) - 1)
    with pytest.raises(InvalidInputError, match=f"blob.*{fact}"):
        assembler.add(parts[-1])


def test_refuses_a_blob_above_the_limit_by_its_header() -> None:
    assembler = BlobAssembler(expected_version=7, limit_bytes=len(DATA) - 1)
    with pytest.raises(ExhaustedError, match=r"blob.* 7 .* 8$"):
        assembler.add(header())


def test_accepts_a_blob_of_exactly_the_limit() -> None:
    assembler = BlobAssembler(expected_version=7, limit_bytes=len(DATA))
    assert assembler.add(header()) is None
    assert assembler.add(chunk(DATA)) == DATA


def mostly_zeros(size: int = 4800, values: int = 400) -> bytes:
    return b"".join(bytes(size // values - 1) + bytes([1 + i % 255]) for i in range(values))


def test_packs_sparse_bytes_for_a_receiver_that_supports_it() -> None:
    data = mostly_zeros()
    parts = list(split_blob(data, 7, encodings=ENCODINGS))
    assembler = BlobAssembler(7, limit_bytes=len(data))

    assert [assembler.add(part) for part in parts][-1] == data
    assert parts[0].header.encoding == BLOB_ENCODING_SPARSE
    assert parts[0].header.sha256 == hashlib.sha256(data).digest()
    assert parts[0].header.size_bytes == sum(len(part.chunk) for part in parts[1:]) < len(data) / 5


def test_sends_dense_bytes_and_unsupported_encodings_unpacked() -> None:
    for data, encodings in ((mostly_zeros(), ()), (bytes(range(1, 256)) * 20, ENCODINGS)):
        opening, only = split_blob(data, 7, encodings=encodings)
        assert only.chunk == data
        assert (opening.header.encoding, opening.header.plain_size_bytes) == (0, 0)


def packed_header(**changes: object) -> BlobPart:
    part = next(split_blob(mostly_zeros(), 7, encodings=ENCODINGS))
    for name, value in changes.items():
        setattr(part.header, name, value)
    return part


def test_a_packed_blob_is_bounded_by_its_unpacked_size() -> None:
    with pytest.raises(ExhaustedError, match=r"blob.* 4799 .* 4800$"):
        BlobAssembler(7, limit_bytes=4799).add(packed_header())


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"encoding": 7}, r"encoding.*\[0, 1\].* 7"),
        ({"encoding": 0}, "plain size.* 0 to 0 .*encoding 0.* 4800$"),
        ({"plain_size_bytes": 0}, "plain size.*encoding 1.* 0$"),
        ({"plain_size_bytes": 3, "size_bytes": 4}, "plain size.* 5 to 4096 .* 4 .* 3$"),
        ({"plain_size_bytes": 4 * 1024 + 1, "size_bytes": 4}, "plain size.* 5 to 4096 .* 4 .* 4097$"),
    ],
)
def test_a_header_whose_encoding_and_sizes_do_not_fit_is_refused(changes: dict[str, object], fact: str) -> None:
    with pytest.raises(InvalidInputError, match=fact):
        BlobAssembler(7).add(packed_header(**changes))


def test_an_unpacked_blob_must_have_the_digest_that_was_announced() -> None:
    opening, only = split_blob(mostly_zeros(), 7, encodings=ENCODINGS)
    opening.header.plain_size_bytes += 1
    assembler = BlobAssembler(7)
    assembler.add(opening)
    with pytest.raises(InvalidInputError, match="sha256"):
        assembler.add(only)
