"""Append-only files of JSON lines. Each line has its own CRC-32, so damage affects only the damaged lines.

A line is a JSON object with a last field "crc": the CRC-32 of the bytes before `, "crc": `.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from actorq.statefiles.crc import crc32

_END = re.compile(rb', "crc": (\d{1,10})\}')


def encode_line(values: Mapping[str, Any]) -> bytes:
    """The line for an object, with its newline."""
    body = json.dumps(values).encode()[:-1]
    return body + b', "crc": %d}\n' % crc32(body)


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line without its newline, and its object, or None for a damaged line.

    A damaged newline joins two lines. Both are still read.
    """
    with path.open("rb") as file:
        for line in file:
            yield from _objects(line)


def _objects(line: bytes) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    start = 0
    for end in _END.finditer(line):
        body = line[start : end.start()]
        if crc32(body) == int(end[1]):
            yield line[start : end.end()], json.loads(body + b"}")
            # The byte after an object is the newline, damaged or not.
            start = end.end() + 1
    if rest := line[start:].rstrip(b"\n"):
        yield rest, None
