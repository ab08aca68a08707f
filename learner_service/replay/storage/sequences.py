"""Detects duplicate segments: keeps the last sequence number of every incarnation of every actor.

An actor numbers its segments in order, and sends some of them again after a broken stream. Therefore a number that is
not above the last stored number is a duplicate.
"""

import contextlib
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from learner_service.replay.storage.mapped_files import read_checked, write_checked

_log = logging.getLogger(__name__)

KEY_BYTES = 16

# Two processes may use one actor's name for a while, for example a slow old process and its successor. Each process
# needs its own last number. A few incarnations are enough, and limit the size of the table.
_INCARNATIONS_KEPT = 4
# More than the members of a run, so that at least one actor in a full table is not a member.
MOST_ACTORS = 32_768


def actor_key(name: str) -> bytes:
    """The key of an actor in the records: the BLAKE2b-128 digest of its name."""
    return hashlib.blake2b(name.encode(), digest_size=KEY_BYTES).digest()


class SegmentSource(NamedTuple):
    """Identity of a segment: the actor's 16-byte key, its incarnation, and the sequence number."""

    actor_key: bytes
    incarnation: int
    sequence: int

    @classmethod
    def from_name(cls, actor_name: str, incarnation: int, sequence: int) -> "SegmentSource":
        """The source of a segment of the actor called `actor_name`."""
        return cls(actor_key(actor_name), incarnation, sequence)


class LastSequences:
    """The last sequence number of each incarnation of each actor, for its latest few incarnations. Thread-safe.

    It has room for `MOST_ACTORS` actors. A further actor replaces the actor that has stored nothing for the longest
    time. Members are never replaced (docs/decisions/0050-forgotten-actors.md).
    """

    def __init__(self) -> None:
        self.is_member: Callable[[bytes], bool] = lambda actor_key: False
        """Whether the run knows an actor with this key. The numbers of such an actor are kept."""
        self.forgotten = 0
        """The highest incarnation of a forgotten actor; 0 for none."""
        # The latest user is the last entry.
        self._actors: OrderedDict[bytes, dict[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def contains(self, source: SegmentSource) -> bool:
        """True when a segment of this incarnation with this number or a later number has been recorded."""
        return source.sequence <= self.last(source.actor_key, source.incarnation, -1)

    def last(self, actor_key: bytes, incarnation: int, default: int = 0) -> int:
        """The last number of an incarnation; `default` when there is none."""
        with self._lock:
            return self._actors.get(actor_key, {}).get(incarnation, default)

    def may_have_forgotten(self, actor_key: bytes, incarnation: int) -> bool:
        """Whether this incarnation may have stored segments although the table has no number of it."""
        return self.last(actor_key, incarnation, -1) < 0 and incarnation <= self.forgotten

    def newest_incarnation(self, actor_key: bytes) -> int:
        """The highest incarnation of an actor; 0 when there is none."""
        with self._lock:
            return max(self._actors.get(actor_key, {}), default=0)

    def advance(self, source: SegmentSource) -> None:
        """Record `source`. A number below the recorded one changes nothing."""
        with self._lock:
            incarnations = self._actors.setdefault(source.actor_key, {})
            self._actors.move_to_end(source.actor_key)
            # Removing and reinserting the entry keeps the dict ordered by latest use, so its first entry is the oldest.
            last = incarnations.pop(source.incarnation, -1)
            incarnations[source.incarnation] = max(last, source.sequence)
            if len(incarnations) > _INCARNATIONS_KEPT:
                del incarnations[next(iter(incarnations))]
            if len(self._actors) > MOST_ACTORS:
                self._forget_one()

    def as_dict(self) -> dict[tuple[bytes, int], int]:
        """A copy: (actor key, incarnation) -> last sequence number, in the order of the actors' latest use."""
        with self._lock:
            return {
                (key, incarnation): sequence
                for key, incarnations in self._actors.items()
                for incarnation, sequence in incarnations.items()
            }

    def _forget_one(self) -> None:
        for _ in range(MOST_ACTORS):
            key = next(iter(self._actors))
            if not self.is_member(key):
                self.forgotten = max(self.forgotten, *self._actors.pop(key))
                return
            self._actors.move_to_end(key)

    def load(self, path: Path) -> int:
        """Load the table that `save_sequences` wrote to `path`, and return its `through`; 0 without a file.

        A damaged file counts as missing: the previous table and the records after it have the same content.
        """
        for candidate in (path, _previous(path)):
            try:
                table = read_checked(candidate)
                if table is None:
                    continue
                self.forgotten = max(self.forgotten, table.get("forgotten", 0))
                for key, incarnations in table["actors"].items():
                    for incarnation, sequence in incarnations:
                        self.advance(SegmentSource(bytes.fromhex(key), incarnation, sequence))
                return int(table["through"])
            except ValueError as error:
                _log.warning("replay: %s; the table is rebuilt from the records", error)
        return 0


def save_sequences(path: Path, last: dict[tuple[bytes, int], int], through: int, forgotten: int = 0) -> None:
    """Replace the table at `path`, for the records before global index `through`. forgotten: read after `last`."""
    actors: dict[str, list[tuple[int, int]]] = {}
    for (key, incarnation), sequence in last.items():
        actors.setdefault(key.hex(), []).append((incarnation, sequence))
    with contextlib.suppress(FileNotFoundError):
        path.replace(_previous(path))
    write_checked(path, {"through": through, "forgotten": forgotten, "actors": actors})


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")
