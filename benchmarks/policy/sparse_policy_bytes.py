"""Sizes of sparse policies in several forms for transport, and the time to write and read each form."""

import gzip
import importlib
import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from actorq.transport.payload.sparse_bytes import pack, unpack

PACKED = "packed"


@dataclass(frozen=True)
class Form:
    """A function that writes bytes, and one that reads them; None for forms of which only the size matters."""

    write: Callable[[bytes], bytes]
    read: Callable[[bytes, int], bytes] | None = None


def forms() -> dict[str, Form]:
    """All forms. zstd only if the package zstandard is installed."""
    found = {
        "plain": Form(lambda data: data, lambda data, size: data),
        "zlib 1": _zlib(1),
        "zlib 6": _zlib(6),
        "zlib 9": _zlib(9),
        # The same as gRPC's own compression of messages.
        "gzip 6": Form(lambda data: gzip.compress(data, 6), lambda data, size: gzip.decompress(data)),
        "CSR": Form(_csr),
        "CSR, zlib 6": Form(lambda data: zlib.compress(_csr(data), 6)),
        "mask, zlib 6": Form(_mask),
        PACKED: Form(
            lambda data: pack(data) or data, lambda data, size: unpack(data, size) if len(data) < size else data
        ),
    }
    try:
        # Not a dependency, so it is measured only if installed.
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        return found
    for level in (3, 19):
        found[f"zstd {level}"] = Form(
            zstandard.ZstdCompressor(level=level).compress,
            lambda data, size: bytes(zstandard.ZstdDecompressor().decompress(data)),
        )
    return found


def sizes(data: bytes, ways: Mapping[str, Form]) -> dict[str, int]:
    """Bytes in each form."""
    return {name: len(form.write(data)) for name, form in ways.items()}


def milliseconds(data: bytes, ways: Mapping[str, Form], repeats: int) -> dict[str, tuple[float, float]]:
    """CPU time to write and to read, for the readable forms. Medians of interleaved repeats."""
    written = {name: form.write(data) for name, form in ways.items() if form.read is not None}
    spans: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in written}
    for _ in range(repeats):
        for name, packed in written.items():
            form = ways[name]
            assert form.read is not None
            began = time.thread_time()
            form.write(data)
            between = time.thread_time()
            form.read(packed, len(data))
            spans[name][0].append(between - began)
            spans[name][1].append(time.thread_time() - between)
    return {name: (1e3 * statistics.median(w), 1e3 * statistics.median(r)) for name, (w, r) in spans.items()}


def mask_once(versions: Sequence[bytes]) -> float:
    """Mean bytes of a version after the first, if the receiver remembers which bytes may differ from 0.

    If all nonzero bytes of a version lie at remembered positions, only values are sent. Otherwise the version is sent
    packed, and its positions are remembered too. A file of another size starts with no positions.
    """
    expected = np.zeros(0, np.bool_)
    sent = []
    for data in versions:
        array = np.frombuffer(data, np.uint8)
        used = array != 0
        if len(used) == len(expected) and not (used & ~expected).any():
            sent.append(len(zlib.compress(array[expected].tobytes(), 6)))
        else:
            sent.append(len(pack(data) or data))
            expected = used | expected if len(used) == len(expected) else used
    return statistics.fmean(sent[1:])


def values_only(data: bytes) -> int:
    """Bytes of the values only, which is the least possible. The receiver knows all positions."""
    array = np.frombuffer(data, np.uint8)
    return len(zlib.compress(array[array != 0].tobytes(), 6))


def _zlib(level: int) -> Form:
    return Form(lambda data: zlib.compress(data, level), lambda data, size: zlib.decompress(data))


def _csr(data: bytes) -> bytes:
    """Rows of 256 bytes: start of each row (uint32), columns (uint8), values."""
    array = np.frombuffer(data, np.uint8)
    positions = np.flatnonzero(array)
    starts = np.searchsorted(positions, np.arange(0, len(array), 256)).astype(np.uint32)
    return starts.tobytes() + (positions % 256).astype(np.uint8).tobytes() + array[positions].tobytes()


def _mask(data: bytes) -> bytes:
    array = np.frombuffer(data, np.uint8)
    used = array != 0
    return zlib.compress(np.packbits(used).tobytes(), 6) + zlib.compress(array[used].tobytes(), 6)
