"""Bytes that are mostly 0, packed and unpacked."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorq.errors import InvalidInputError
from actorq.transport.payload.sparse_bytes import MOST_GAIN, pack, unpack


def sparse(size: int, density: float, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    return bytes((rng.integers(1, 256, size) * (rng.random(size) < density)).astype(np.uint8))


def packed_of(gaps: bytes, values: bytes) -> bytes:
    first = zlib.compress(gaps)
    return struct.pack("<I", len(first)) + first + zlib.compress(values)


@settings(deadline=None)
@given(size=st.integers(0, 5000), density=st.floats(0, 0.8), seed=st.integers(0, 2**16))
def test_packed_bytes_are_unpacked_to_the_same_bytes(size: int, density: float, seed: int) -> None:
    data = sparse(size, density, seed)
    packed = pack(data)
    if packed is not None:
        assert unpack(packed, size) == data
        assert len(packed) < size <= MOST_GAIN * len(packed)


@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 509, 510, 511, 30_000])
def test_gaps_of_every_length_are_kept(gap: int) -> None:
    data = bytes([7]) + bytes(gap) + bytes([8]) + bytes(300) + bytes([9, 9])
    packed = pack(data)
    assert packed is not None
    assert unpack(packed, len(data)) == data


def test_positions_are_kept_across_the_blocks_in_which_they_are_restored() -> None:
    data = sparse(20_000, 0.02)
    packed = pack(data)
    assert packed is not None
    assert all(unpack(packed, len(data), block_size) == data for block_size in (1, 2, 7, 100))


def test_packed_size_is_close_to_the_entropy() -> None:
    size, density = 200_000, 0.04
    packed = pack(sparse(size, density))
    assert packed is not None
    entropy = -density * np.log2(density) - (1 - density) * np.log2(1 - density) + density * np.log2(255)
    assert len(packed) < 1.05 * size * entropy / 8


@pytest.mark.parametrize(("size", "densest"), [(10_000, 0.75), (1_000_000, 0.75), (1_100_000, 0.5)])
def test_does_not_pack_bytes_with_too_few_zeros(size: int, densest: float) -> None:
    assert pack(sparse(size, densest + 0.05)) is None
    assert pack(sparse(size, densest - 0.05)) is not None
    assert pack(b"") is None
    # The first samples may contain only zeros.
    assert pack(bytes(1024) + sparse(size, 1.0)) is None


def test_does_not_pack_bytes_beyond_the_maximum_ratio() -> None:
    assert pack(bytes(10_000_000)) is None


@pytest.mark.parametrize(
    ("packed", "fact"),
    [
        (b"abc", " 4 bytes.* 3$"),
        (struct.pack("<I", 9) + b"12345678", "gaps of 9 .* 8 "),
        (struct.pack("<I", 4) + b"12345678", "gaps.*zlib"),
        (packed_of(bytes(5), b"12345")[:-3], "zlib.*values"),
        (packed_of(bytes(5), b"12345") + b"x", "zlib.*values"),
        (packed_of(bytes(101), b"1"), " 100 bytes of gaps"),
        (packed_of(bytes(100), bytes(10_000_000)), " 100 bytes of values"),
        (packed_of(bytes([50, 50]), b"12"), " 100 bytes.* 2 .*gaps"),
        (packed_of(bytes(3), b"12"), " 100 bytes.* 2 .*gaps"),
        (packed_of(bytes(3), b"1234"), " 3 values.* 4$"),
    ],
)
def test_packed_bytes_that_do_not_give_that_size_are_refused(packed: bytes, fact: str) -> None:
    with pytest.raises(InvalidInputError, match=f"packed blob.*{fact}"):
        unpack(packed, 100)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_come_out_with_the_size_that_was_asked_for(data: st.DataObject) -> None:
    packed = bytearray(pack(sparse(500, 0.1)) or b"")
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        size = len(unpack(bytes(packed), 500))
    except InvalidInputError:
        size = 500
    assert size == 500
