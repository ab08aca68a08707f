"""Single faults in the files of a folder: changed bytes, blocks of zeros, truncated files."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

BLOCK_BYTES = 256
_HEXADECIMAL = re.compile(r"[0-9a-f]{32,}")
_NUMBER = re.compile(r"\d+")
# The kinds of bytes in a text file. One fault hits each kind.
_BYTE_CLASSES = (b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b'"', b"{}[]", b":,.-#", b" ", b"\n")


@dataclass(frozen=True)
class Fault:
    """One change of one file. path: relative to the run's folder."""

    path: str
    kind: str
    offset: int
    count: int = 1
    mask: int = 0

    def apply(self, root: Path) -> None:
        """Change the file in place."""
        file = root / self.path
        data = bytearray(file.read_bytes())
        if self.kind == "flip":
            data[self.offset] ^= self.mask
        elif self.kind == "zeros":
            data[self.offset : self.offset + self.count] = bytes(len(data[self.offset : self.offset + self.count]))
        else:
            del data[self.offset :]
        file.write_bytes(data)

    def __str__(self) -> str:
        return f"{self.path}: {self.kind} at byte {self.offset}"


def file_class(path: str) -> str:
    """The path without numbers and digests. Files of one class hold the same kind of content."""
    return _NUMBER.sub("N", _HEXADECIMAL.sub("H", path))


def faults(root: Path, wanted: Callable[[str], bool], count: int, rng: np.random.Generator) -> list[Fault]:
    """`count` faults in the wanted files, equally many for each class of files. Every fault changes a file."""
    classes: dict[str, list[str]] = {}
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if file.is_file() and file.stat().st_size and wanted(path):
            classes.setdefault(file_class(path), []).append(path)
    if not classes:
        raise SystemExit("expected files that match, got none to damage")
    endless = [_endless(root, paths, rng) for paths in classes.values()]
    return [next(endless[number % len(endless)]) for number in range(count)]


def _endless(root: Path, paths: Sequence[str], rng: np.random.Generator) -> Iterator[Fault]:
    """Faults in the newest and in the oldest file of a class, then in random files."""
    ends = [paths[-1], paths[0]] if len(paths) > 1 else [paths[0]]
    systematic = [_systematic(path, (root / path).read_bytes(), rng) for path in ends]
    yield from (fault for fault in chain.from_iterable(zip_longest(*systematic)) if fault is not None)
    while True:
        path = paths[int(rng.integers(len(paths)))]
        data = (root / path).read_bytes()
        yield _flip(path, int(rng.integers(len(data))), rng)


def _systematic(path: str, data: bytes, rng: np.random.Generator) -> Iterator[Fault]:
    size = len(data)
    yield _flip(path, 0, rng)
    yield Fault(path, "cut", 0)
    yield _flip(path, size - 1, rng)
    yield Fault(path, "cut", size // 2)
    yield _flip(path, size // 2, rng)
    for offset in (0, size // 2, max(0, size - BLOCK_BYTES)):
        if any(data[offset : offset + BLOCK_BYTES]):
            yield Fault(path, "zeros", offset, BLOCK_BYTES)
    yield Fault(path, "cut", size - 1)
    values = np.frombuffer(data, np.uint8)
    for byte_class in _BYTE_CLASSES:
        if len(found := np.flatnonzero(np.isin(values, np.frombuffer(byte_class, np.uint8)))):
            yield _flip(path, int(rng.choice(found)), rng)


def _flip(path: str, offset: int, rng: np.random.Generator) -> Fault:
    """One bit, or all bits, of a byte."""
    return Fault(path, "flip", offset, mask=int(rng.choice([1, 2, 16, 128, 255])))
