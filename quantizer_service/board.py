"""The board on which the newest of each scheme hangs: watchers look at it at their own pace and miss what was between.

That is all there is to conflation: nothing is queued for anyone, so a slow watcher neither delays the others nor
falls behind by more than what it is reading now. For one event loop.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Board(Generic[T]):
    """The newest item of each scheme, with its version; items are shared by all watchers."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, T]] = {}
        self._watchers: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def subscribers(self) -> int:
        """How many watch."""
        return self._watchers.total()

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that somebody watches."""
        return tuple(sorted(scheme for scheme, count in self._watchers.items() if count))

    def version(self, scheme: str) -> int:
        """The version that hangs there; 0 for none."""
        return self._newest[scheme][0] if scheme in self._newest else 0

    def post(self, version: int, items: Iterable[tuple[str, T]]) -> None:
        """Hang up an item for each scheme, unless a newer one hangs there, and wake the watchers."""
        for scheme, item in items:
            if version > self.version(scheme):
                self._newest[scheme] = (version, item)
        self._wake()

    def subscribe(self, scheme: str, after_version: int = 0) -> "Subscription[T]":
        """Watch a scheme from above a version; leave the subscription when done."""
        return Subscription(self, scheme, after_version)

    def close(self) -> None:
        """End all subscriptions, once they have seen what hangs there now."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Subscription(Generic[T]):
    """One watcher's view of the board; a context manager."""

    def __init__(self, board: Board[T], scheme: str, after_version: int) -> None:
        self._board = board
        self._scheme = scheme
        self._seen = after_version
        self._open = True
        board._watchers[scheme] += 1

    async def next(self) -> T | None:
        """The newest item above what was seen, now or when it comes; None when the board or this is closed."""
        while self._open:
            changed = self._board._changed
            version, item = self._board._newest.get(self._scheme, (0, None))
            if version > self._seen:
                self._seen = version
                return item
            if self._board._closed:
                return None
            await changed.wait()
        return None

    def close(self) -> None:
        """Leave; may be called again."""
        if self._open:
            self._open = False
            self._board._watchers[self._scheme] -= 1
            self._board._wake()

    def __enter__(self) -> "Subscription[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
