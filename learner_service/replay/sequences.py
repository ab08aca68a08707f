"""Which segments have been stored: the last sequence number of every incarnation of every actor.

An actor numbers its segments in order and sends them again after a broken stream. A number at or below the last one
stored is therefore a duplicate.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from actorq.files import replace_file

KEY_BYTES = 16

# Two processes may use one actor's name for a while, for example an old one that is slow to die and its successor.
# Each needs its own last number; a handful covers them and bounds the table by the number of actors.
_INCARNATIONS_KEPT = 4


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """Identity of a segment: who sent it (a 16-byte key), in which life of that process, and its number there."""

    actor_key: bytes
    incarnation: int
    sequence: int

    def __post_init__(self) -> None:
        """Raise ValueError unless the key has 16 bytes and both numbers fit 64 unsigned bits."""
        if len(self.actor_key) != KEY_BYTES:
            raise ValueError(f"actor_key must have {KEY_BYTES} bytes, got {len(self.actor_key)}")
        for name, value in (("incarnation", self.incarnation), ("sequence", self.sequence)):
            if not 0 <= value < 2**64:
                raise ValueError(f"{name} must be in [0, 2**64), got {value}")

    @classmethod
    def from_name(cls, actor_name: str, incarnation: int, sequence: int) -> "SegmentSource":
        """The source of a segment of the actor called `actor_name`; the key is the name's BLAKE2b-128 digest."""
        key = hashlib.blake2b(actor_name.encode(), digest_size=KEY_BYTES).digest()
        return cls(key, incarnation, sequence)


class LastSequences:
    """The last sequence number per (actor key, incarnation); the latest few incarnations of each actor are kept."""

    def __init__(self) -> None:
        """Start with no actors."""
        self._actors: dict[bytes, dict[int, int]] = {}

    def contains(self, source: SegmentSource) -> bool:
        """True when a segment of this incarnation with this or a later number has been recorded."""
        last = self._actors.get(source.actor_key, {}).get(source.incarnation)
        return last is not None and source.sequence <= last

    def advance(self, source: SegmentSource) -> None:
        """Record `source`; a number below the recorded one changes nothing."""
        incarnations = self._actors.setdefault(source.actor_key, {})
        # Taking the entry out and putting it back keeps the dict ordered by latest use, so the first is the stalest.
        last = incarnations.pop(source.incarnation, -1)
        incarnations[source.incarnation] = max(last, source.sequence)
        if len(incarnations) > _INCARNATIONS_KEPT:
            del incarnations[next(iter(incarnations))]

    def as_dict(self) -> dict[tuple[bytes, int], int]:
        """A copy: (actor key, incarnation) -> last sequence number."""
        return {
            (key, incarnation): sequence
            for key, incarnations in self._actors.items()
            for incarnation, sequence in incarnations.items()
        }

    def save(self, path: Path, through: int) -> None:
        """Replace the table at `path` with this one, which covers the records before global index `through`."""
        actors = {key.hex(): list(incarnations.items()) for key, incarnations in self._actors.items()}
        replace_file(path, json.dumps({"through": through, "actors": actors}), sync=True)

    def load(self, path: Path) -> int:
        """Record everything that `save` wrote to `path` and return its `through`; a missing file is an empty table."""
        if not path.exists():
            return 0
        table = json.loads(path.read_text(encoding="utf-8"))
        for key, incarnations in table["actors"].items():
            for incarnation, sequence in incarnations:
                self.advance(SegmentSource(bytes.fromhex(key), incarnation, sequence))
        return int(table["through"])
