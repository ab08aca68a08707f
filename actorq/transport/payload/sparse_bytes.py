"""Bytes most of which are 0, packed: those that are not, and the distances between them, each through zlib.

Weights of sparse policies are such bytes, in float32 and in int8, wherever in a file they lie. The packed form is

    uint32 little-endian: bytes of the first stream; the first stream; the second stream

both zlib's. The first stream unpacks to the gaps: for each byte that is not 0 how many zeros precede it since the last
one, one byte each, 255 standing for 255 zeros with no such byte after them. The second unpacks to those bytes.
Gaps of random positions are as small as their entropy allows once zlib has coded them; zlib alone takes 30% more.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from actorq.errors import InvalidInputError

_LENGTH = struct.Struct("<I")
_LONGEST = 255
# Shares of bytes that are not 0 up to which packing is tried: weights of structured sparsity have half of theirs. What
# is large takes long to pack, so it has to be worth it. Of dense weights fewer than 3% of the bytes are 0.
_DENSEST, _DENSEST_OF_LARGE, _LARGE_BYTES = 0.75, 0.5, 1024 * 1024
# What is looked at before: 64 KiB, so that large dense policies wait for microseconds only.
_SAMPLES, _SAMPLE_BYTES = 64, 1024
_LEVEL = 6
# How many times larger what comes out may be; a policy with 2% of its weights becomes a hundredth.
MOST_GAIN = 1024
# Gaps that are turned to positions at a time: they take eight times the memory of the bytes.
_BLOCK = 256 * 1024


def pack(data: bytes) -> bytes | None:
    """The packed form, None where too few bytes are 0, nothing is gained or more than `MOST_GAIN`."""
    array = np.frombuffer(data, np.uint8)
    densest = _DENSEST if len(array) <= _LARGE_BYTES else _DENSEST_OF_LARGE
    if not len(array) or np.count_nonzero(sample := _sample(array)) > densest * len(sample):
        return None
    positions = np.flatnonzero(array)
    if len(positions) > densest * len(array):
        return None
    zeros = np.diff(positions, prepend=-1) - 1
    long = zeros // _LONGEST
    # A gap of n times 255 zeros and more is n escapes before its last byte.
    gaps = np.full(int(long.sum()) + len(zeros), _LONGEST, np.uint8)
    gaps[np.cumsum(long + 1) - 1] = zeros % _LONGEST
    first = _deflated(gaps.tobytes())
    packed = b"".join((_LENGTH.pack(len(first)), first, _deflated(array[positions].tobytes())))
    return packed if len(packed) < len(data) <= MOST_GAIN * len(packed) else None


def unpack(packed: bytes, size: int) -> bytes:
    """The bytes that were packed.

    size: how many they are. No more memory than a few times of that is taken, whatever the streams hold. Raises
    InvalidInputError that says what is wrong.
    """
    if len(packed) < _LENGTH.size:
        raise InvalidInputError(f"packed blob: expected {_LENGTH.size} bytes or more, got {len(packed)}")
    (length,) = _LENGTH.unpack_from(packed)
    streams = memoryview(packed)[_LENGTH.size :]
    if length > len(streams):
        raise InvalidInputError(f"packed blob: expected gaps of {length} bytes, got {len(streams)} bytes in all")
    gaps = np.frombuffer(_inflated(streams[:length], size, "gaps"), np.uint8)
    values = np.frombuffer(_inflated(streams[length:], size, "values"), np.uint8)
    result = np.zeros(size, np.uint8)
    # The next position that is free, and the next value.
    position = taken = 0
    for start in range(0, len(gaps), _BLOCK):
        block = gaps[start : start + _BLOCK]
        ends = block < _LONGEST
        after = position + np.cumsum(block.astype(np.int64) + ends)
        places = after[ends] - 1
        part = values[taken : taken + len(places)]
        if len(part) < len(places) or after[-1] > size:
            raise InvalidInputError(
                f"packed blob: expected {size} bytes, of which {len(values)} are not 0, got gaps for others"
            )
        result[places] = part
        position, taken = int(after[-1]), taken + len(places)
    if taken < len(values):
        raise InvalidInputError(f"packed blob: expected {taken} values, as there are gaps, got {len(values)}")
    return result.tobytes()


def _sample(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes, or of many some, from all over."""
    if len(array) <= _SAMPLES * _SAMPLE_BYTES:
        return array
    starts = np.linspace(0, len(array) - _SAMPLE_BYTES, _SAMPLES).astype(np.int64)
    return np.concatenate([array[start : start + _SAMPLE_BYTES] for start in starts])


def _deflated(data: bytes) -> bytes:
    # For data that repeats itself little: gaps become 3% smaller by it.
    deflater = zlib.compressobj(_LEVEL, strategy=zlib.Z_FILTERED)
    return deflater.compress(data) + deflater.flush()


def _inflated(stream: memoryview, limit: int, what: str) -> bytes:
    """A zlib stream of at most `limit` bytes, whole and with nothing after it."""
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(stream, limit + 1)
    except zlib.error as error:
        raise InvalidInputError(f"packed blob: expected {what} as a zlib stream, but {error}") from None
    if len(data) > limit:
        raise InvalidInputError(f"packed blob: expected at most {limit} bytes of {what}, got more")
    if not inflater.eof or inflater.unused_data:
        raise InvalidInputError(f"packed blob: expected one whole zlib stream of {what}, got part of one or more")
    return data
