"""The ledger: segments that an actor made and the learner acknowledged, in one file per process of an actor.

A file is a sequence of records. Each has a kind, a sequence number and the codes of the segment's transitions. Only the
last record can be cut short, by a kill. Such a record is ignored.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.domain.trajectory import Segment
from benchmarks.faults.chaos.environment import codes_of

_HEADER = struct.Struct("<BQI")
_MADE, _ACKNOWLEDGED = 1, 2


class Ledger:
    """Written by one actor process. Each record is in the page cache before `made` or `acknowledged` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._acknowledged = 0

    def made(self, segment: Segment) -> None:
        """Record a segment before it is queued."""
        codes = codes_of(segment.observations[:-1][segment.valid])
        self._file.write(_HEADER.pack(_MADE, segment.sequence, len(codes)) + codes.astype("<u8").tobytes())

    def acknowledged(self, sequence: int) -> None:
        """Record that the learner has acknowledged all segments up to `sequence`."""
        if sequence > self._acknowledged:
            self._acknowledged = sequence
            self._file.write(_HEADER.pack(_ACKNOWLEDGED, sequence, 0))


@dataclass(frozen=True)
class Verdict:
    """Transitions made, acknowledged and stored, and the faults: lost, stored twice, or made by no actor."""

    made: int
    acknowledged: int
    stored: int
    lost: int
    twice: int
    unknown: int


def judge(folder: Path, stored: NDArray[np.uint64]) -> Verdict:
    """Compare the ledgers in `folder` with the codes uint64[n] of all transitions in the replay."""
    made_codes, acknowledged_codes = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for path in sorted(folder.iterdir()):
        made: dict[int, NDArray[np.uint64]] = {}
        acknowledged = 0
        for kind, sequence, codes in _records(path.read_bytes()):
            if kind == _MADE:
                made[sequence] = codes
            else:
                acknowledged = sequence
        made_codes += made.values()
        acknowledged_codes += (codes for sequence, codes in made.items() if sequence <= acknowledged)
    all_made, all_acknowledged = np.concatenate(made_codes), np.concatenate(acknowledged_codes)
    once = np.unique(stored)
    return Verdict(
        made=len(all_made),
        acknowledged=len(all_acknowledged),
        stored=len(stored),
        lost=len(np.setdiff1d(all_acknowledged, once)),
        twice=len(stored) - len(once),
        unknown=len(np.setdiff1d(once, all_made)),
    )


def _records(data: bytes) -> Iterator[tuple[int, int, NDArray[np.uint64]]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        kind, sequence, count = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        if offset + 8 * count > len(data):
            return
        yield kind, sequence, np.frombuffer(data, "<u8", count, offset)
        offset += 8 * count
