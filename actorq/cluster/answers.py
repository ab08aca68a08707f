"""Reads answers of the API server, also those with objects that are nested deeper than Python can follow.

Whoever may create an object chooses its depth. One such object must not hide the others of a list.
"""

import json
import re
from collections.abc import Iterable, Iterator

from actorq.cluster.objects import Object

# Levels of lists and mappings that are kept of an answer with deeper ones. Objects that people write have about ten.
LEVELS = 100
# A change of an object in a stream of them: the API server takes no object of 3 MiB.
_LARGEST_LINE = 2**23

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")


def decoded(data: bytes) -> Object:
    """The tree of an answer in JSON. Where it is too deep to be read, what is below LEVELS is null."""
    try:
        tree: Object = json.loads(data)
    except RecursionError:
        tree = json.loads(shallow(data))
    return tree


def shallow(data: bytes, levels: int = LEVELS) -> bytes:
    """JSON with null in the place of each list and mapping below `levels`."""
    kept: list[bytes] = []
    level = begin = 0
    for found in _TOKEN.finditer(data):
        if found[0] in _OPENING:
            level += 1
            if level == levels + 1:
                kept += [data[begin : found.start()], b"null"]
        elif found[0] in _CLOSING:
            if level == levels + 1:
                begin = found.end()
            level -= 1
    return b"".join([*kept, data[begin:]])


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream, without empty ones. Ends at a line that is longer than any object."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)
        if len(rest) > _LARGEST_LINE:
            return
