"""Keeps acknowledged items in memory until the learner has flushed them to its disk."""

from collections import deque

from actorq.domain.trajectory import Evaluation, Segment

Item = Segment | Evaluation

# A learner flushes about once a second. These limits cover many such periods.
_MOST_ITEMS = 1024
_MOST_BYTES = 64 * 2**20


class Kept:
    """The newest acknowledged items, in order, up to a limit. A learner that loses them in a power cut gets them again.

    Not thread-safe: the owner's lock protects it.
    """

    def __init__(self, most_items: int = _MOST_ITEMS, most_bytes: int = _MOST_BYTES) -> None:
        """Keep at most `most_items` items and `most_bytes` bytes."""
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        """Number of kept items."""
        return len(self._items)

    def add(self, item: Item) -> None:
        """Keep an acknowledged item, and drop the oldest ones beyond the limits."""
        self._items.append(item)
        self._bytes += _nbytes(item)
        while len(self._items) > self._most_items or self._bytes > self._most_bytes:
            self._drop_oldest()

    def forget_through(self, sequence: int) -> None:
        """Drop all items up to `sequence`, which are on the learner's disk."""
        while self._items and self._items[0].sequence <= sequence:
            self._drop_oldest()

    def take_all(self) -> list[Item]:
        """Remove and return all kept items, oldest first."""
        items = list(self._items)
        self._items.clear()
        self._bytes = 0
        return items

    def _drop_oldest(self) -> None:
        self._bytes -= _nbytes(self._items.popleft())


def _nbytes(item: Item) -> int:
    return sum(column.nbytes for column in item.columns.values()) if isinstance(item, Segment) else 0
