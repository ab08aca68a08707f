"""Packs bytes that are mostly 0: the nonzero values and the gaps between them, each compressed by zlib.

The weights of sparse policies are mostly 0, in float32 and in int8. The packed form is

    uint32 little-endian: size of the first stream; the first stream; the second stream

The first stream decompresses to gaps of one byte each: the number of zeros between the previous value and the next.
A gap of 255 represents 255 zeros without a following value. The second stream decompresses to the values. zlib codes
gaps of random positions close to their entropy. zlib alone on the plain bytes needs 30% more.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from actorq.errors import InvalidInputError

_LENGTH = struct.Struct("<I")
_LONGEST = 255
# Largest shares of nonzero bytes for which packing is tried. Structured sparsity gives half such bytes. Packing large
# data is slow, so its bound is lower. Fewer than 3% of the bytes of dense weights are 0.
_DENSEST, _DENSEST_OF_LARGE, _LARGE_BYTES = 0.75, 0.5, 1024 * 1024
# Size of the sample that decides. It is small, so that large dense policies wait only microseconds.
_SAMPLES, _SAMPLE_BYTES = 64, 1024
_LEVEL = 6
# Bound on the ratio of plain to packed size. A policy with 2% of its weights shrinks to a hundredth.
MOST_GAIN = 1024


def pack(data: bytes) -> bytes | None:
    """The packed form; None if too few bytes are 0, or if the gain is negative or above `MOST_GAIN`."""
    array = np.frombuffer(data, np.uint8)
    densest = _DENSEST if len(array) <= _LARGE_BYTES else _DENSEST_OF_LARGE
    if not len(array) or np.count_nonzero(sample := _sample(array)) > densest * len(sample):
        return None
    positions = np.flatnonzero(array)
    if len(positions) > densest * len(array):
        return None
    zeros = np.diff(positions, prepend=-1) - 1
    long = zeros // _LONGEST
    # A run of at least 255 * n zeros adds n escapes before its last gap.
    gaps = np.full(int(long.sum()) + len(zeros), _LONGEST, np.uint8)
    gaps[np.cumsum(long + 1) - 1] = zeros % _LONGEST
    first = _deflated(gaps.tobytes())
    packed = b"".join((_LENGTH.pack(len(first)), first, _deflated(array[positions].tobytes())))
    return packed if len(packed) < len(data) <= MOST_GAIN * len(packed) else None


def unpack(packed: bytes, size: int, block_size: int = 256 * 1024) -> bytes:
    """The plain bytes.

    size: number of plain bytes. Memory stays within a few times this size, for any content of the streams.
    block_size: number of gaps converted to positions at a time. Positions need eight times the memory.

    Raises InvalidInputError for damaged data.
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
    # The next free position, and the index of the next value.
    position = taken = 0
    for start in range(0, len(gaps), block_size):
        block = gaps[start : start + block_size]
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
        raise InvalidInputError(f"packed blob: expected {taken} values, one for each gap, got {len(values)}")
    return result.tobytes()


def _sample(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """All bytes; of large data, blocks spread over all of it."""
    if len(array) <= _SAMPLES * _SAMPLE_BYTES:
        return array
    starts = np.linspace(0, len(array) - _SAMPLE_BYTES, _SAMPLES).astype(np.int64)
    return np.concatenate([array[start : start + _SAMPLE_BYTES] for start in starts])


def _deflated(data: bytes) -> bytes:
    # Z_FILTERED suits data with few repetitions: gaps become smaller.
    deflater = zlib.compressobj(_LEVEL, strategy=zlib.Z_FILTERED)
    return deflater.compress(data) + deflater.flush()


def _inflated(stream: memoryview, limit: int, what: str) -> bytes:
    """Decompress a complete zlib stream to at most `limit` bytes. No data may follow it."""
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
